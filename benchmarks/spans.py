"""What a record costs the training, and what it costs until it is in the file: in C and in Python.

    python benchmarks/spans.py

One process without ranks or torch.  Processor time of the recording thread for each record, and of the whole process, from the
first record to the closed file; the least of some runs, since everything else on the machine only adds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
COUNT = 20_000
TENSORS = 400
RUNS = 7


class Handle:
    """As runtime/core/work.py has it."""

    __slots__ = ("call", "flow")
    call: Any
    flow: bool


class Entry:
    """As runtime/core/work.py has it."""

    __slots__ = ("handle", "life", "request", "submitted_ns", "tensor")
    handle: Any
    life: Any
    request: Any
    submitted_ns: int
    tensor: Any


class Request:
    """As runtime/core/control/messages.py has it."""

    def __init__(self, name: str) -> None:
        self.name, self.kind, self.dtype, self.shape, self.process_set = name, "allreduce", "float32", (16,), 0


class Buffer:
    """A tensor of 16 elements."""

    nbytes = 64


def cases() -> dict[str, Callable[[], None]]:
    """What is recorded, `COUNT` times each."""
    from tlkit.timeline.record import recorder  # noqa: PLC0415  the environment chooses which, before it is imported
    from tlkit.timeline.record.queue import Call  # noqa: PLC0415
    from tlkit.timeline.vocabulary import Category, LaneKind  # noqa: PLC0415

    begin, end = recorder.begin, recorder.end
    collective, forward, other, lane = Category.COLLECTIVE, Category.FORWARD, Category.OTHER, LaneKind.COMMUNICATION
    requests, buffer = [Request(f"allreduce.layer.{number}") for number in range(TENSORS)], Buffer()

    def spans() -> None:
        for _ in range(COUNT):
            end(begin(collective, "ALLREDUCE", lane))

    def spans_with_args() -> None:
        for _ in range(COUNT):
            end(begin(other, "SYNCHRONIZED", args={"caller": "gradient"}), {"seq": 3})

    def phases() -> None:
        for _ in range(COUNT):
            end(begin(forward, "FORWARD"))

    def counters() -> None:
        writer = recorder.timeline()
        assert writer is not None
        for number in range(COUNT):
            writer.counter("input elements", number, 3)

    def tensors() -> None:
        writer = recorder.timeline()
        assert writer is not None
        for seq, batch in enumerate(batches):
            at_ns = time.monotonic_ns()
            writer.carried(batch, 0, seq, (at_ns, at_ns + 1000, at_ns + 2000), executed=True)

    call = Call("gradient", blocking=False)

    def submitted() -> list[Entry]:
        handle, batch = Handle(), []
        handle.call, handle.flow = call, True
        for request in requests:
            entry = Entry()
            entry.request, entry.tensor, entry.handle, entry.life = request, buffer, handle, None
            entry.submitted_ns = time.monotonic_ns()
            batch.append(entry)
        return batch

    batches: list[list[Entry]] = []

    def prepare() -> None:
        batches[:] = [submitted() for _ in range(COUNT // TENSORS)]

    return {
        "a begin and its end": spans,
        "the same with args": spans_with_args,
        "a phase of the step, metered": phases,
        "a counter": counters,
        "a tensor's life, 10 events": tensors,
        "": prepare,
    }


def rank_main() -> None:
    """Measure the recorder that the environment chooses."""
    sys.path.insert(0, str(REPOSITORY))
    from tlkit.timeline.record import recorder  # noqa: PLC0415
    from tlkit.timeline.record.queue import IS_COMPILED  # noqa: PLC0415
    from tlkit.timeline.record.shard_format import ShardClock, ShardHeader  # noqa: PLC0415
    from tlkit.timeline.record.shard_writer import ShardWriter  # noqa: PLC0415

    clock = ShardClock(origin_ns=time.monotonic_ns(), origin_unix_ns=0)
    header = ShardHeader(
        run_id="r", rank=0, size=1, local_rank=0, host="h", boot_id="b", process_id=1, device="cpu", clock=clock
    )  # fmt: skip
    found: dict[str, tuple[float, float]] = {}
    run = cases()
    prepare = run.pop("")
    with tempfile.TemporaryDirectory() as folder:
        for name, record in run.items():
            least = [float("inf"), float("inf")]
            for _ in range(RUNS):
                recorder.start_timeline(ShardWriter(Path(folder) / "t.json", header, flush_interval_s=60))
                # The first sight of a name costs more, once; what comes of it is written when nothing more comes.
                prepare()
                record()
                prepare()
                time.sleep(0.3)
                whole, begun = time.process_time_ns(), time.thread_time_ns()
                record()
                hot_ns = time.thread_time_ns() - begun
                recorder.stop_timeline()
                least = [min(least[0], hot_ns / COUNT), min(least[1], (time.process_time_ns() - whole) / COUNT)]
            found[name] = (round(least[0]), round(least[1]))
    print(json.dumps({"compiled": IS_COMPILED, "ns": found}))


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        rank_main()
        return
    rows = []
    for portable in ("0", "1"):
        environment = {**os.environ, "TLKIT_PORTABLE_RECORDER": portable}
        done = subprocess.run(
            [sys.executable, __file__, "--measure"], env=environment, capture_output=True, text=True, check=True
        )
        rows.append(json.loads(done.stdout))
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    titles = ["C" if row["compiled"] else "Python" for row in rows]
    print(f"{'ns':32}" + "".join(f"{title + ', training':>20}{title + ', all':>20}" for title in titles))
    for name in rows[0]["ns"]:
        print(f"{name:32}" + "".join(f"{hot:20}{whole:20}" for hot, whole in (row["ns"][name] for row in rows)))


if __name__ == "__main__":
    main()
