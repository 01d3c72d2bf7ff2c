"""Turns records into lines of a shard (docs/timeline-format.md).

Text is made on the writer's thread only, from templates that are rendered once a name, because formatting is by far the
largest cost of recording.  Knows nothing of files and threads.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from ..vocabulary import LANE_TIDS, MIXED, NEGOTIATE_PREFIX, QUEUE, WORKER_TID, LaneKind
from .queue import Call, TensorLife
from .queue.calls import UNKNOWN_CALL

FORMAT_VERSION: Final = "tlkit.timeline/1"
#: The line that says which costly settings are on.
SETTINGS_EVENT: Final = "tlkit_settings"

#: Rendered templates are kept for this many names; unnamed operations get a new name each time and must not pile up.
MAX_TEMPLATES: Final = 8192

_COMMUNICATION: Final = LANE_TIDS[LaneKind.COMMUNICATION]
_COMPUTE: Final = LANE_TIDS[LaneKind.COMPUTE]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardClock:
    """How the clock of a rank relates to the run (all in ns)."""

    origin_ns: int
    """This rank's monotonic clock at `ts` 0."""
    origin_unix_ns: int
    offset_ns: int = 0
    """What to add to this rank's monotonic clock to get rank 0's."""
    uncertainty_ns: int = 0
    method: str = "same-host"


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardHeader:
    """Who writes a shard."""

    run_id: str
    rank: int
    size: int
    local_rank: int
    host: str
    boot_id: str
    process_id: int
    device: str
    clock: ShardClock
    runtime: str = "tlkit"
    """Who runs the collectives: `tlkit`, or `torch` for torch.distributed."""
    framework: str = "torch"
    """What the training script is written in: one of vocabulary.FRAMEWORKS."""
    versions: dict[str, str] = field(default_factory=dict)


def describe_calls(calls: Collection[Call]) -> dict[str, Any]:
    """Args of a collective whose tensors come of these calls: what they have in common, else "mixed"."""
    if not calls:
        return {}
    if len(calls) == 1:
        (call,) = calls
        caller, blocking, where = call.caller, call.blocking, call.where
    else:
        caller, where = _common([call.caller for call in calls]), _common([call.where for call in calls])
        blocking = any(call.blocking for call in calls)
    if not caller:
        return {}
    args: dict[str, Any] = {"caller": caller, "blocking": int(blocking)}
    if where:
        args["where"] = where
    return args


def _common(values: Sequence[str]) -> str:
    return values[0] if len(set(values)) == 1 else MIXED


def quote(text: str) -> str:
    """`text` as a JSON string, whatever it holds."""
    return json.dumps(text)


def encode_args(args: dict[str, Any]) -> str:
    """`args` as a JSON object; what JSON cannot hold becomes text."""
    try:
        return msgspec.json.encode(args).decode()
    except (msgspec.MsgspecError, TypeError, UnicodeError, OverflowError):
        return json.dumps(args, default=str)


class ShardFormat:
    r"""Lines for one shard.  Every method returns whole lines, each ending in ",\\n"."""

    keeps_tensors = True
    """Whether lives of tensors can be in the file."""
    is_always_closed = False
    """A file that only grows needs no seeking, and is never without its last bytes."""
    is_templated = True
    """Lines are made of what the `render_` methods return, so that they can be made elsewhere, too."""
    encode_args = staticmethod(encode_args)

    def __init__(self, header: ShardHeader) -> None:
        self._header = header
        self.pid = header.rank
        self.origin_ns = header.clock.origin_ns
        self._span_templates: dict[tuple[str, str, int], str] = {}
        self._life_templates: dict[tuple[Any, ...], tuple[str, ...]] = {}

    def _ts(self, at_ns: int) -> float:
        return (at_ns - self.origin_ns) / 1e3

    def metadata(self, name: str, args: dict[str, Any], tid: int = 0, at_ns: int | None = None) -> str:
        """A metadata event."""
        ts = 0.0 if at_ns is None else self._ts(at_ns)
        return (
            f'{{"name":{quote(name)},"ph":"M","pid":{self.pid},"tid":{tid},"ts":{ts:.3f},'
            f'"args":{encode_args(args)}}},\n'
        )

    def head(self, part: int = 1) -> list[str]:
        """The lines that open a shard, or a later part of it, after the bracket."""
        header = self._header
        described = {
            "format": FORMAT_VERSION,
            **{
                name: getattr(header, name)
                for name in (
                    "run_id",
                    "rank",
                    "size",
                    "local_rank",
                    "host",
                    "boot_id",
                    "process_id",
                    "device",
                    "runtime",
                    "framework",
                )
            },
            "clock": {"source": "CLOCK_MONOTONIC", **msgspec.to_builtins(header.clock)},
            "versions": header.versions,
            **({"part": part} if part > 1 else {}),
        }
        lines = [
            self.metadata("tlkit_shard", described),
            self.metadata("process_name", {"name": f"rank {header.rank} ({header.host})"}),
            self.metadata("process_sort_index", {"sort_index": header.rank}),
        ]
        for lane, tid in LANE_TIDS.items():
            if lane is not LaneKind.HOST or header.device != "cpu":
                lines += self.lane(tid, str(lane))
        return lines

    def lane(self, tid: int, name: str) -> list[str]:
        """The lines that name a lane."""
        return [
            self.metadata("thread_name", {"name": name}, tid),
            self.metadata("thread_sort_index", {"sort_index": tid}, tid),
        ]

    def worker_lane(self, worker: int) -> str:
        """The lines that name the lane of a data loader worker."""
        return "".join(self.lane(WORKER_TID + worker, f"data worker {worker}"))

    def render_span(self, name: str, category: str, tid: int) -> str:
        """A complete event up to its time."""
        return f'{{"name":{quote(name)},"cat":"{category}","ph":"X","pid":{self.pid},"tid":{tid},"ts":'

    def span(
        self,
        name: str,
        category: str,
        tid: int,
        start_ns: int,
        end_ns: int,
        args: dict[str, Any] | None,
    ) -> str:
        """A complete event."""
        key = (name, category, tid)
        template = self._span_templates.get(key)
        if template is None:
            if len(self._span_templates) >= MAX_TEMPLATES:
                self._span_templates.clear()
            template = self._span_templates[key] = self.render_span(name, category, tid)
        tail = f',"args":{encode_args(args)}}},\n' if args else "},\n"
        return f'{template}{self._ts(start_ns):.3f},"dur":{(end_ns - start_ns) / 1e3:.3f}{tail}'

    def _edge(self, phase: str, name: str, category: str, tid: int, at_ns: int, args: dict[str, Any] | None) -> str:
        tail = f',"args":{encode_args(args)}}},\n' if args else "},\n"
        return (
            f'{{"name":{quote(name)},"cat":"{category}","ph":"{phase}","pid":{self.pid},"tid":{tid},'
            f'"ts":{self._ts(at_ns):.3f}{tail}'
        )

    def begin(self, name: str, category: str, tid: int, at_ns: int, args: dict[str, Any] | None) -> str:
        """The begin event of a span that is still open."""
        return self._edge("B", name, category, tid, at_ns, args)

    def end(self, name: str, category: str, tid: int, at_ns: int, args: dict[str, Any] | None) -> str:
        """The end event of a span that was begun with `begin`."""
        return self._edge("E", name, category, tid, at_ns, args)

    def render_counter(self, name: str) -> str:
        """A counter event up to its time."""
        return f'{{"name":{quote(name)},"ph":"C","pid":{self.pid},"tid":0,"ts":'

    def counter(self, name: str, at_ns: int, value: float) -> str:
        """A counter event; nothing for a value that JSON cannot hold."""
        if not math.isfinite(value):
            return ""
        return f'{self.render_counter(name)}{self._ts(at_ns):.3f},"args":{{"value":{value!r}}}}},\n'

    def pending(self) -> str:
        """Lines that were kept back, for others to come along."""
        return ""

    def instant(self, name: str, at_ns: int) -> str:
        """An instant event of this rank, on the communication lane."""
        return (
            f'{{"name":{quote(name)},"ph":"i","s":"p","pid":{self.pid},"tid":{_COMMUNICATION},'
            f'"ts":{self._ts(at_ns):.3f}}},\n'
        )

    def finish(self, events: int, lost: int, error: str = "") -> str:
        """The last event: what the file holds, this one included, and what it does not."""
        return self.metadata("tlkit_end", {"events": events, "lost": lost, **({"error": error} if error else {})})

    def largest_gradient(self, name: str, nbytes: int, all_nbytes: int) -> str:
        """The line that says which of the model's gradients is the largest."""
        return self.metadata("tlkit_model", {"largest": name, "largest_bytes": nbytes, "gradient_bytes": all_nbytes})

    def settings(self, on: Mapping[str, float], details: Mapping[str, str]) -> str:
        """The line that says which settings that make training slow are on, which share they concern, and some in words."""
        shares = {name: round(share, 3) for name, share in on.items() if share}
        words = {name: words for name, words in details.items() if name in on}
        return self.metadata(
            SETTINGS_EVENT,
            {"on": list(on), **({"shares": shares} if shares else {}), **({"details": words} if words else {})},
        )

    def clock(self, at_ns: int, offset_ns: int, uncertainty_ns: int) -> str:
        """A later measurement of this rank's clock offset."""
        return self.metadata("tlkit_clock", {"offset_ns": offset_ns, "uncertainty_ns": uncertainty_ns}, at_ns=at_ns)

    def _life_template(self, life: TensorLife, process_set: int) -> tuple[str, ...]:
        key = (life.name, life.kind, life.nbytes, life.dtype, tuple(life.shape), process_set, life.call)
        pieces = self._life_templates.get(key)
        if pieces is None:
            if len(self._life_templates) >= MAX_TEMPLATES:
                self._life_templates.clear()
            pieces = self._life_templates[key] = self.render_life(life, process_set)
        return pieces

    def render_life(self, life: TensorLife, process_set: int) -> tuple[str, ...]:
        """The constant pieces of a tensor's life; between them go its number and the times, always side by side."""
        call = life.call
        tensor, kind = quote(life.name), life.kind.upper()
        negotiate = f'"{NEGOTIATE_PREFIX}{kind}"'

        def edge(name: str, phase: str) -> str:
            return (
                f'{{"name":{name},"cat":"tensor","ph":"{phase}","pid":{self.pid},"tid":{_COMMUNICATION},'
                f'"id":"{self.pid}.'
            )

        described = f'"bytes":{life.nbytes},"dtype":"{life.dtype}","shape":{quote(str(list(life.shape)))}'
        described += f',"process_set":{process_set}'
        if call.caller:
            described += f',"caller":"{call.caller}"'
        if call.blocking:
            described += ',"blocking":1'
        if call.where:
            described += f',"where":{quote(call.where)}'
        end = "},\n"
        return (
            edge(tensor, "b"),
            f',"args":{{{described}}}{end}{edge(negotiate, "b")}',
            edge(negotiate, "e"),
            end + edge(f'"{QUEUE}"', "b"),
            end + edge(f'"{QUEUE}"', "e"),
            end + edge(f'"{kind}"', "b"),
            end + edge(f'"{kind}"', "e"),
            end + edge(tensor, "e"),
        )

    def life_begin(self, life: TensorLife, process_set: int) -> str:
        """The lines of a tensor that is still waiting for other ranks."""
        pieces = self._life_template(life, process_set)
        submitted = f'{life.number}","ts":{self._ts(life.submitted_ns):.3f}'
        return f"{pieces[0]}{submitted}{pieces[1]}{submitted}}},\n"

    def lives(
        self,
        lives: Sequence[TensorLife],
        process_set: int,
        seq: int,
        times_ns: tuple[int, int, int],
    ) -> str:
        """The lines of all tensors of one executed collective.

        Args:
            times_ns: when the ranks were known to be ready, when work on it began, and when it ended.
        """
        # This is most of the cost of recording: numbers become text once, and the rest is one concatenation a tensor.
        negotiated_ts, start_ts, end_ts = (f'","ts":{self._ts(at_ns):.3f}' for at_ns in times_ns)
        seq_args = f',"args":{{"seq":{seq}}}'
        flow = f'"name":"tensor","cat":"flow","pid":{self.pid}'
        flow_start = f'{{{flow},"ph":"s","tid":{_COMPUTE},"id":"{self.pid}.'
        flow_end = f'}},\n{{{flow},"ph":"f","bp":"e","tid":{_COMMUNICATION},"id":"{self.pid}.'
        lines = []
        for life in lives:
            head, head_end, *tail = self._life_template(life, process_set)
            after, queue_begin, queue_end, kind_begin, kind_end, last = tail
            number = life.number
            submitted = f'{number}","ts":{self._ts(life.submitted_ns):.3f}'
            negotiated, start, end = f"{number}{negotiated_ts}", f"{number}{start_ts}", f"{number}{end_ts}"
            if life.claim():  # else an earlier flush wrote the first half
                lines.append(f"{head}{submitted}{head_end}{submitted}}},\n")
            lines.append(
                f"{after}{negotiated}{queue_begin}{negotiated}{queue_end}{start}{kind_begin}{start}"
                f"{kind_end}{end}{seq_args}{last}{end}}},\n"
            )
            if life.flow:
                lines.append(f"{flow_start}{submitted}{flow_end}{start}}},\n")
        return "".join(lines)


__all__ = [
    "FORMAT_VERSION",
    "UNKNOWN_CALL",
    "Call",
    "ShardClock",
    "ShardFormat",
    "ShardHeader",
    "TensorLife",
    "describe_calls",
    "encode_args",
    "quote",
]
