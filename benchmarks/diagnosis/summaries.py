"""What HOROVOD_TIMELINE_LEVEL=steps would have left of a timeline that was recorded in full.

The records of each shard go, in the order of the file, through the format that the recorder uses at that level: a few numbers
a step remain, and what the shard says of itself.  So the same run is diagnosed from all that happened, and from its sums alone.
"""

import json
from pathlib import Path
from typing import Any

from tlkit.timeline.record.sampled_format import NO_STEP, SampledFormat
from tlkit.timeline.record.shard_format import ShardClock, ShardHeader


def keep_sums(trace: Path, into: Path) -> None:
    """Write the shards of `trace` again, without anything but the sums of their steps."""
    into.mkdir(parents=True, exist_ok=True)
    for path in sorted(trace.glob("*.json")):
        events = json.loads(path.read_text(encoding="utf-8"))
        kept = [json.dumps(event) for event in events if event["ph"] == "M"]
        told = [line.rstrip(",") for line in "".join(_sums(events)).splitlines()]
        lines = [*kept[:1], *told, *kept[1:]]
        (into / path.name).write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def _sums(events: list[dict[str, Any]]) -> list[str]:
    """The lines that tell the sums."""
    clock = ShardClock(origin_ns=0, origin_unix_ns=0)
    header = ShardHeader(
        run_id="", rank=int(events[0]["pid"]), size=1, local_rank=0, host="", boot_id="", process_id=0, device="", clock=clock
    )  # fmt: skip
    form = SampledFormat(header, NO_STEP, clock=lambda: 0.0)
    begun: dict[tuple[int, str], list[int]] = {}
    lines = []
    for event in events:
        at_ns = round(event["ts"] * 1e3)
        key = event["tid"], event.get("name", "")
        if event["ph"] == "X":
            end_ns = at_ns + round(event["dur"] * 1e3)
            lines.append(form.span(event["name"], event["cat"], event["tid"], at_ns, end_ns, event.get("args")))
        elif event["ph"] == "B":
            begun.setdefault(key, []).append(at_ns)
        elif event["ph"] == "E" and begun.get(key):
            lines.append(form.span(event["name"], event.get("cat", ""), event["tid"], begun[key].pop(), at_ns, None))
    return [*lines, form.pending()]
