"""XPlane (`*.xplane.pb`): what the profilers of TensorFlow, Keras and JAX write, one file a process.

Read by the wire format, without TensorFlow.  Threads of tf.data are lanes of loader workers, whose spans are named by the stages
of the input pipeline; operators of TensorFlow and XLA on the host are compute, unless the file shows a device, whose streams take
their place.
"""

import itertools
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, overload

import msgspec

from ..errors import TraceError
from ..model.columns import TableBuilder
from ..model.trace import ARRIVAL_COLUMNS, COUNTER_COLUMNS, MAX_RANKS, TENSOR_COLUMNS, Clock, Trace, TraceMeta
from ..read.protobuf import BYTES, VARINT, WireError, places, read_varint
from ..read.source import Source
from ..scanning import plain
from ..vocabulary import Category
from .base import Progress, count_up
from .hlo_names import METADATA_PLANE, Phases
from .xplane_host import DEVICE_PLANE, HOST_PLANE, Rows, device_rows, host_rows, is_device_plane
from .xplane_space import Space
from .xplane_tables import RankPlanes, find_steps, make_collectives, make_launches, make_spans, make_steps

NAME: Final = "xplane"
SUFFIX: Final = ".xplane.pb"
#: What programs put in the place of bytes that are no text (U+FFFD), and how much of a file this may be by chance.
_REPLACED: Final = "\ufffd".encode()
MAX_REPLACED_RATIO: Final = 0.05

_PLANE_NAME: Final = re.compile(rb"/(?:host|device):|Task Environment$|#Chrome|/custom:")
_MAX_PLANE_NAME: Final = 200
_RANK_IN_NAME: Final = re.compile(r"(?:rank|process|worker|task)[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_ENVIRONMENT: Final = "Task Environment"
#: Times from here on are of the wall clock: others count from the beginning of the profile.
_WALL_CLOCK_NS: Final = 10**17
_KERAS: Final = re.compile(r"^(?:one|multi)_step_on_(?:iterator|data)$")
_TENSORFLOW: Final = re.compile(r"^(?:TFE_|EagerExecute$|EagerLocalExecute|IteratorGetNextOp|ExecutorState::)")

_encode: Final = msgspec.json.Encoder().encode


def sniff(head: bytes) -> bool:
    """A first plane of a name that planes have."""
    if head[:1] != b"\x0a":
        return False
    data = memoryview(head)
    try:
        length, at = read_varint(data, 1)
        for number, kind, value, end in places(data, at, min(at + length, len(data))):
            if number == 2:  # noqa: PLR2004  the name
                return (
                    kind == BYTES and end - value <= _MAX_PLANE_NAME and _PLANE_NAME.match(data[value:end]) is not None
                )
            if (number, kind) not in {(1, VARINT), (3, BYTES), (4, BYTES), (5, BYTES), (6, BYTES)}:
                return False
    except WireError:
        return False
    return False


class PlaneArgs(Sequence[bytes]):
    """Stats of events as JSON, decoded at first use."""

    def __init__(self, parts: Sequence[tuple[Space, Rows]]) -> None:
        self._parts = parts
        self._firsts = list(accumulate([len(rows.kept) for _, rows in parts], initial=0))

    def __len__(self) -> int:
        return self._firsts[-1]

    @overload
    def __getitem__(self, row: int) -> bytes: ...

    @overload
    def __getitem__(self, row: slice) -> list[bytes]: ...

    def __getitem__(self, row: int | slice) -> bytes | list[bytes]:
        """The stats of a row as a JSON object; b"" if there are none."""
        if isinstance(row, slice):
            return [self[number] for number in range(*row.indices(len(self)))]
        if not 0 <= row < len(self):
            raise IndexError(row)
        part = bisect_right(self._firsts, row) - 1
        space, rows = self._parts[part]
        stats = space.stats(rows.plane, rows.line, int(rows.kept[row - self._firsts[part]]))
        return _encode(plain(stats)) if stats else b""


def read(sources: Sequence[Source], progress: Progress) -> Trace:
    """Read files that belong together, each as one rank.

    Raises:
        TraceError: they hold no events, or two are of the same rank.
    """
    on_progress = count_up(sources, progress)
    ranks = [_read_file(source, number) for number, source in _numbered(sources)]
    for item in ranks:
        on_progress(len(item.space.data))
    if not any(len(rows.kept) for item in ranks for rows in item.rows):
        data = bytes(ranks[0].space.data)
        if data.count(_REPLACED) * len(_REPLACED) > len(data) * MAX_REPLACED_RATIO:
            raise TraceError(
                f"{sources[0].path} was handled as text on its way, which has replaced the bytes that are no letters: copy it "
                "from its origin as a binary file"
            )
        raise TraceError(
            f"{sources[0].path} holds no events of a host or a device: was the profiler stopped before its first step?"
        )
    is_wall_clock = _set_clocks(ranks)
    origin_ns = min(item.first_ns() + item.base_ns for item in ranks if any(len(rows.kept) for rows in item.rows))
    spans, args = make_spans(ranks, origin_ns)
    collectives = make_collectives(ranks, origin_ns)
    arrivals = collectives[["process_set", "seq", "rank"]].assign(arrival_ns=collectives["start_ns"])
    known = {Category(text) for text in spans["category"].unique()} - {Category.OTHER}
    framework = _framework(ranks)
    if known & {Category.BACKWARD, Category.OPTIMIZER} or framework:
        known |= {Category.FORWARD}
    return Trace(
        meta=TraceMeta(
            format=NAME,
            files=tuple(str(item.space.source.path) for item in ranks),
            ranks=tuple(item.rank for item in ranks),
            size=max(len(ranks), ranks[-1].rank + 1) if len(ranks) > 1 or collectives.empty else 0,
            events=sum(item.space.events for item in ranks),
            dropped=dict(sum((item.space.source.dropped for item in ranks), Counter())),
            clock=Clock(method="single" if _has_one_clock(ranks, is_wall_clock) else "none", uncertainty_ns=0),
            known_categories=frozenset(known),
            framework=framework,
            hosts={item.rank: item.space.hosts[0] for item in ranks if item.space.hosts},
            notes=tuple(_notes(ranks)),
            epoch_unix_ns=origin_ns if is_wall_clock else 0,
        ),
        spans=spans,
        collectives=collectives,
        tensors=TableBuilder(TENSOR_COLUMNS).finish(),
        arrivals=arrivals.astype(ARRIVAL_COLUMNS).reset_index(drop=True),
        steps=make_steps(ranks, origin_ns),
        counters=TableBuilder(COUNTER_COLUMNS).finish(),
        launches=make_launches(ranks, origin_ns),
        raw_args=PlaneArgs(args),
    )


def _numbered(sources: Sequence[Source]) -> list[tuple[int, Source]]:
    """Files with their ranks: by names that say so, or in the order of their names.

    Raises:
        TraceError: two are of the same rank.
    """
    ordered = sorted(sources, key=lambda source: str(source.path))
    told = [_RANK_IN_NAME.search(source.path.name) for source in ordered]
    if not all(told):
        return list(enumerate(ordered))
    numbered = sorted(
        ((int(match[1]), source) for match, source in zip(told, ordered, strict=True) if match),
        key=lambda item: item[0],
    )
    for (rank, source), (other, another) in itertools.pairwise(numbered):
        if rank == other:
            raise TraceError(
                f"{source.path.name}, {another.path.name}: these files are all of rank {rank}; open one run at a time"
            )
    if numbered[-1][0] > MAX_RANKS:
        return list(enumerate(ordered))
    return numbered


def _read_file(source: Source, rank: int) -> RankPlanes:
    space = Space(source)
    phases = Phases(space)
    devices = [plane for plane in space.planes if is_device_plane(plane)]
    rows = [
        part
        for plane in space.planes
        if HOST_PLANE.match(plane.name)
        for part in host_rows(space, plane, phases, has_device=bool(devices))
    ]
    for plane in devices:
        rows += device_rows(space, plane, phases)
    item = RankPlanes(space=space, rank=rank, rows=rows)
    item.steps, item.steps_from = find_steps(space)
    return item


def _set_clocks(ranks: Sequence[RankPlanes]) -> bool:
    """Bring the files to the wall clock, if all of them tell it; else each begins at 0."""
    bases = []
    for item in ranks:
        if item.first_ns() >= _WALL_CLOCK_NS:
            bases.append(0)
            continue
        told = next(
            (plane.stats.get("profile_start_time") for plane in item.space.planes if plane.name == _ENVIRONMENT), None
        )
        bases.append(told if isinstance(told, int) and _WALL_CLOCK_NS <= told < 2**62 else -1)
    is_known = all(base >= 0 for base in bases)
    for item, base in zip(ranks, bases, strict=True):
        item.base_ns = base if is_known else -item.first_ns()
    return is_known


def _has_one_clock(ranks: Sequence[RankPlanes], is_wall_clock: bool) -> bool:  # noqa: FBT001
    """Whether there is nothing to align: one process, or several of one host."""
    hosts = {tuple(item.space.hosts) for item in ranks}
    return len(ranks) == 1 or (is_wall_clock and len(hosts) == 1 and () not in hosts)


def _framework(ranks: Sequence[RankPlanes]) -> str:
    """Whose profiler wrote the files; "" if that does not show."""
    planes = [plane for item in ranks for plane in item.space.planes]
    names = [name for plane in planes if HOST_PLANE.match(plane.name) for name in plane.names.values()]
    if any(_KERAS.match(name) for name in names):
        return "keras"
    if any("jax_version" in plane.stats for plane in planes if plane.name == METADATA_PLANE):
        return "jax"
    if any(_TENSORFLOW.match(name) for name in names):
        return "tensorflow"
    return "jax" if any(name.startswith("PjitFunction(") for name in names) else ""


def _notes(ranks: Sequence[RankPlanes]) -> list[str]:
    notes = []
    marks = {item.steps_from for item in ranks if item.steps and item.steps_from}
    if marks:
        notes.append(
            f"no step is annotated in this profile: steps are taken from {' and '.join(sorted(marks))} "
            "(tf.profiler.experimental.Trace('train', step_num=n, _r=1), jax.profiler.StepTraceAnnotation('train', step_num=n))"
        )
    several = [
        len({plane.name for plane in item.space.planes if DEVICE_PLANE.match(plane.name) and is_device_plane(plane)})
        for item in ranks
    ]
    if any(count > 1 for count in several):
        notes.append("several devices of one process are shown as one, which is idle if all of them are")
    return notes
