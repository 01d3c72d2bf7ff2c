"""Our own shards (docs/timeline-format.md)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from ..columns import TableBuilder, Times, map_times
from ..errors import TraceError
from ..json_events import Event, args_of, iterate_events, nanoseconds
from ..source import Source
from ..trace import (
    ARRIVAL_COLUMNS,
    COLLECTIVE_COLUMNS,
    COUNTER_COLUMNS,
    SPAN_COLUMNS,
    STEP_COLUMNS,
    TENSOR_COLUMNS,
    Clock,
    RankClock,
    Trace,
    TraceMeta,
)
from ..vocabulary import (
    COLLECTIVE_KINDS,
    LANE_TIDS,
    MEMCPY_IN,
    MEMCPY_OUT,
    NEGOTIATE_PREFIX,
    QUEUE,
    STEP,
    WORKER_TID,
    Category,
    LaneKind,
)
from .base import Progress

NAME: Final = "tlkit"

_KIND_OF_NAME: Final = {kind.upper(): kind for kind in COLLECTIVE_KINDS}
_LANE_OF_TID: Final = {tid: lane for lane, tid in LANE_TIDS.items()}
#: Missing ranks that a note names.
_MOST_NAMED: Final = 10
_COMMUNICATION: Final = LANE_TIDS[LaneKind.COMMUNICATION]
_CATEGORIES: Final = {str(category): category for category in Category}


def _integer(value: object, default: int) -> int:
    """A number out of args, which may hold anything."""
    return int(value) if isinstance(value, (int, float)) and abs(value) < 2**62 else default


def sniff(head: bytes) -> bool:
    """Our first event says who we are."""
    return b'"tlkit_shard"' in head


@dataclass(slots=True)
class _Header:
    """What `tlkit_shard` says."""

    run_id: str = ""
    rank: int = 0
    size: int = 0
    host: str = ""
    origin_unix_ns: int = 0
    offset_ns: int = 0
    uncertainty_ns: int = 0


@dataclass(slots=True)
class _Tables:
    """The tables under construction, shared by all shards."""

    spans: TableBuilder = field(default_factory=lambda: TableBuilder(SPAN_COLUMNS))
    collectives: TableBuilder = field(default_factory=lambda: TableBuilder(COLLECTIVE_COLUMNS))
    tensors: TableBuilder = field(default_factory=lambda: TableBuilder(TENSOR_COLUMNS))
    steps: TableBuilder = field(default_factory=lambda: TableBuilder(STEP_COLUMNS))
    counters: TableBuilder = field(default_factory=lambda: TableBuilder(COUNTER_COLUMNS))
    arrivals: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """Arrival by process set, seq and rank; a rank's own word wins over rank 0's."""
    raw_args: list[bytes] = field(default_factory=list)


_TIMES: Final = {
    "spans": ("start_ns",),
    "collectives": ("submitted_ns", "negotiated_ns", "start_ns"),
    "tensors": ("submitted_ns", "negotiated_ns", "start_ns", "end_ns"),
    "steps": ("start_ns", "end_ns"),
    "counters": ("ts_ns",),
}


class _ShardReader:
    """Reads one shard into the tables.  Times are shifted by `_BASE_NS`, so that none is negative."""

    def __init__(self, tables: _Tables, dropped: Counter[str]) -> None:
        self.tables = tables
        self.dropped = dropped
        self.header: _Header | None = None
        self.events = 0
        self.clock_readings: list[tuple[int, int]] = []
        self.first_rows = {name: len(getattr(tables, name)) for name in _TIMES}
        self._open: dict[int, list[Event]] = {}
        self._lives: dict[int | str, SimpleNamespace] = {}
        self._phases: dict[int | str, tuple[str, int]] = {}
        self._children: list[tuple[int, int, str]] = []
        self._batches: list[tuple[Event, int, int]] = []
        self._last_ns = 0

    def read(self, data: bytes) -> None:
        """Take in all events of the shard."""
        handlers = {
            "X": self._complete,
            "b": self._async_begin,
            "e": self._async_end,
            "B": self._begin,
            "E": self._end,
            "C": self._counter,
            "M": self._metadata,
        }
        for events in iterate_events(data, self.dropped):
            self.events += len(events)
            for event in events:
                handler = handlers.get(event.ph)
                if handler is not None:
                    handler(event)
                elif event.ph not in {"s", "f", "t", "i", "n"}:
                    self.dropped["unknown_phase"] += 1
        self._close_open()
        self._add_collectives()

    @property
    def rank(self) -> int:
        return self.header.rank if self.header is not None else 0

    def _metadata(self, event: Event) -> None:
        if event.name == "tlkit_shard":
            args = args_of(event)
            clock = args.get("clock")
            clock = clock if isinstance(clock, dict) else {}
            self.header = _Header(
                run_id=str(args.get("run_id", "")),
                rank=_integer(args.get("rank"), 0),
                size=_integer(args.get("size"), 0),
                host=str(args.get("host", "")),
                origin_unix_ns=_integer(clock.get("origin_unix_ns"), 0),
                offset_ns=_integer(clock.get("offset_ns"), 0),
                uncertainty_ns=_integer(clock.get("uncertainty_ns"), 0),
            )
        elif event.name == "tlkit_clock":
            args = args_of(event)
            at_ns = nanoseconds(event.ts) + _BASE_NS
            self.clock_readings.append((at_ns, _integer(args.get("offset_ns"), 0)))
        elif event.name == "tlkit_end":
            lost = _integer(args_of(event).get("lost"), 0)
            if lost:
                self.dropped["lost_while_recording"] += lost

    def _complete(self, event: Event) -> None:
        start_ns, dur_ns = nanoseconds(event.ts) + _BASE_NS, nanoseconds(event.dur)
        if dur_ns < 0 or start_ns < 0:
            self.dropped["impossible_time"] += 1
            return
        self._last_ns = max(self._last_ns, start_ns + dur_ns)
        self._span(event, start_ns, dur_ns, event.args)

    def _span(self, event: Event, start_ns: int, dur_ns: int, args: bytes, *, finished: bool = True) -> None:
        tid = event.tid if isinstance(event.tid, int) else -1
        lane_kind = _LANE_OF_TID.get(tid, LaneKind.OTHER)
        lane = str(lane_kind)
        if tid >= WORKER_TID:
            lane_kind, lane = LaneKind.WORKER, f"data worker {tid - WORKER_TID}"
        tables = self.tables
        args_row = -1
        if args:
            args_row = len(tables.raw_args)
            tables.raw_args.append(bytes(args))
        category = _CATEGORIES.get(event.cat, Category.OTHER)
        tables.spans.add(self.rank, lane, str(lane_kind), str(category), event.name, start_ns, dur_ns, args_row)
        if tid == LANE_TIDS[LaneKind.STEPS] and event.name == STEP:
            step = _integer(args_of(event).get("step"), 0)
            tables.steps.add(self.rank, step, start_ns, start_ns + dur_ns)
        elif tid == _COMMUNICATION and finished:
            if event.name in _KIND_OF_NAME:
                self._batches.append((event, start_ns, dur_ns))
            else:
                self._children.append((start_ns, dur_ns, event.name))

    def _begin(self, event: Event) -> None:
        if isinstance(event.tid, int):
            self._open.setdefault(event.tid, []).append(event)

    def _end(self, event: Event) -> None:
        opened = self._open.get(event.tid) if isinstance(event.tid, int) else None
        # Spans that were begun at a flush are few, and may end in any order relative to it: match by name.
        for position in range(len(opened or ()) - 1, -1, -1):
            assert opened is not None
            if opened[position].name == event.name:
                begun = opened.pop(position)
                start_ns, end_ns = nanoseconds(begun.ts) + _BASE_NS, nanoseconds(event.ts) + _BASE_NS
                self._last_ns = max(self._last_ns, end_ns)
                if event.args:
                    begun.args = event.args
                self._span(begun, start_ns, max(end_ns - start_ns, 0), begun.args)
                return
        self.dropped["orphan_end"] += 1

    def _close_open(self) -> None:
        """What was open when the process died lasted at least until the last sign of life."""
        for opened in self._open.values():
            for begun in opened:
                self.dropped["unclosed_begin"] += 1
                start_ns = nanoseconds(begun.ts) + _BASE_NS
                self._span(begun, start_ns, max(self._last_ns - start_ns, 0), begun.args, finished=False)
        for life in self._lives.values():
            self.dropped["unclosed_begin"] += 1
            if life.negotiated_ns < 0:
                wait_ns = max(self._last_ns - life.submitted_ns, 0)
                self._tensor_span(life, f"{NEGOTIATE_PREFIX}{life.kind.upper()}", life.submitted_ns, wait_ns)

    def _async_begin(self, event: Event) -> None:
        at_ns = nanoseconds(event.ts) + _BASE_NS
        if event.id not in self._lives:
            args = args_of(event)
            self._lives[event.id] = SimpleNamespace(
                name=event.name,
                kind="",
                process_set=_integer(args.get("process_set"), 0),
                nbytes=_integer(args.get("bytes"), -1),
                seq=-1,
                submitted_ns=at_ns,
                negotiated_ns=-1,
                start_ns=-1,
                begun=at_ns,
            )
        else:
            life = self._lives[event.id]
            life.begun = at_ns
            if event.name.startswith(NEGOTIATE_PREFIX):
                life.kind = _KIND_OF_NAME.get(event.name.removeprefix(NEGOTIATE_PREFIX), "")

    def _async_end(self, event: Event) -> None:
        life = self._lives.get(event.id)
        if life is None:
            self.dropped["orphan_end"] += 1
            return
        at_ns = nanoseconds(event.ts) + _BASE_NS
        if event.name == life.name:
            del self._lives[event.id]
            self._last_ns = max(self._last_ns, at_ns)
            self.tables.tensors.add(
                self.rank,
                life.process_set,
                life.seq,
                life.name,
                life.kind,
                life.nbytes,
                life.submitted_ns,
                life.negotiated_ns,
                life.start_ns,
                at_ns,
            )
            return
        if event.name.startswith(NEGOTIATE_PREFIX):
            life.negotiated_ns = at_ns
        elif event.name in _KIND_OF_NAME:
            life.start_ns = life.begun
            life.seq = _integer(args_of(event).get("seq"), -1)
        self._tensor_span(life, event.name, life.begun, max(at_ns - life.begun, 0))

    def _tensor_span(self, life: SimpleNamespace, name: str, start_ns: int, dur_ns: int) -> None:
        category = Category.COLLECTIVE
        if name.startswith(NEGOTIATE_PREFIX):
            category = Category.NEGOTIATE
        elif name == QUEUE:
            category = Category.QUEUE
        self.tables.spans.add(self.rank, life.name, str(LaneKind.TENSOR), str(category), name, start_ns, dur_ns, -1)

    def _counter(self, event: Event) -> None:
        value = args_of(event).get("value")
        if isinstance(value, (int, float)):
            self.tables.counters.add(self.rank, event.name, nanoseconds(event.ts) + _BASE_NS, value)
        else:
            self.dropped["counter_without_value"] += 1

    def _add_collectives(self) -> None:
        """One row for each executed collective, with what its children say."""
        starts = np.array([child[0] for child in self._children], dtype=np.int64)
        order = np.argsort(starts, kind="stable")
        for event, start_ns, dur_ns in self._batches:
            first, last = np.searchsorted(starts, [start_ns, start_ns + max(dur_ns, 1)], sorter=order)
            copy_ns, operation = 0, (start_ns, dur_ns)
            for number in order[first:last]:
                child_start_ns, child_dur_ns, name = self._children[number]
                if name in {MEMCPY_IN, MEMCPY_OUT}:
                    copy_ns += child_dur_ns
                else:
                    operation = (child_start_ns, child_dur_ns)
            self._add_collective(event, operation, copy_ns)

    def _add_collective(self, event: Event, operation: tuple[int, int], copy_ns: int) -> None:
        args = args_of(event)
        process_set, seq = _integer(args.get("process_set"), 0), _integer(args.get("seq"), -1)

        def time_of(value: Any) -> int:
            return nanoseconds(value) + _BASE_NS if isinstance(value, (int, float)) else -1

        submitted_ns = time_of(args.get("submitted"))
        tables = self.tables
        tables.collectives.add(
            self.rank,
            process_set,
            seq,
            _KIND_OF_NAME[event.name],
            str(args.get("op", "")),
            str(args.get("dtype", "")),
            str(args.get("algorithm", "")),
            _integer(args.get("bytes"), -1),
            _integer(args.get("tensors"), 1),
            submitted_ns,
            time_of(args.get("negotiated")),
            *operation,
            copy_ns,
        )
        if submitted_ns >= 0:
            tables.arrivals[process_set, seq, self.rank] = submitted_ns
        # Rank 0 tells everybody's arrival; it matters for ranks whose own shard is missing.
        told, members = args.get("arrivals"), args.get("ranks")
        for position, arrival in enumerate(told if isinstance(told, list) else ()):
            # The first rank of a process set tells them in the order of the set's ranks.
            rank = position
            if isinstance(members, list) and position < len(members):
                rank = _integer(members[position], position)
            tables.arrivals.setdefault((process_set, seq, rank), time_of(arrival))


#: Times are kept non-negative while a run is put together: a rank's first event may precede the run's origin.
_BASE_NS: Final = 10**15


def read(sources: Sequence[Source], progress: Progress) -> Trace:
    """Read the shards of one run.

    Raises:
        TraceError: they hold no events.
    """
    tables = _Tables()
    readers: list[tuple[Source, _ShardReader]] = []
    total = sum(source.path.stat().st_size for source in sources)
    done = 0
    for source in sources:
        reader = _ShardReader(tables, source.dropped)
        reader.read(source.read())
        readers.append((source, reader))
        done += source.path.stat().st_size
        progress(done, total)
    frames = {name: getattr(tables, name).finish() for name in _TIMES}
    arrivals = TableBuilder(ARRIVAL_COLUMNS)
    for key, arrival_ns in sorted(tables.arrivals.items()):
        arrivals.add(*key, arrival_ns)
    frames["arrivals"] = arrivals.finish()
    _correct_drift(frames, [reader for _, reader in readers])
    _start_at_zero(frames)
    if not len(frames["spans"]):
        raise TraceError(f"{sources[0].path} holds no spans: did the run end before its first step?")
    headers = [reader.header for _, reader in readers if reader.header is not None]
    dropped: Counter[str] = sum((source.dropped for source, _ in readers), Counter())
    ranks = tuple(sorted({header.rank for header in headers}))
    size = max(*(header.size for header in headers), len(ranks))
    notes = []
    if size > len(ranks):
        # The size is a number out of the file: look for as many missing ranks as are named, not for all there might be.
        missing = list(islice((rank for rank in range(size) if rank not in ranks), _MOST_NAMED))
        more = ", …" if size - len(ranks) > len(missing) else ""
        notes.append(f"{size - len(ranks)} of {size} ranks have no shard here: {', '.join(map(str, missing))}{more}")
    return Trace(
        meta=TraceMeta(
            format=NAME,
            files=tuple(str(source.path) for source, _ in readers),
            ranks=ranks,
            size=size,
            events=sum(reader.events for _, reader in readers),
            dropped=dict(dropped),
            clock=Clock(
                method="single" if len(ranks) == 1 else "runtime",
                uncertainty_ns=max(header.uncertainty_ns for header in headers),
                ranks={reader.header.rank: _rank_clock(reader) for _, reader in readers if reader.header is not None},
            ),
            known_categories=frozenset(Category),
            hosts={header.rank: header.host for header in headers},
            notes=tuple(notes),
            epoch_unix_ns=next((h.origin_unix_ns for h in headers if h.rank == 0), 0),
        ),
        raw_args=tuple(tables.raw_args),
        **frames,
    )


def _rank_clock(reader: _ShardReader) -> RankClock:
    """What the runtime has measured: at the start, and the drift since from its later readings."""
    assert reader.header is not None
    drift = 0.0
    if reader.clock_readings:
        at_ns, offset_ns = reader.clock_readings[-1]
        drift = (offset_ns - reader.header.offset_ns) / max(at_ns - _BASE_NS, 1)
    return RankClock(offset_ns=reader.header.offset_ns, drift=drift, uncertainty_ns=reader.header.uncertainty_ns)


def _correct_drift(frames: dict[str, Any], readers: Sequence[_ShardReader]) -> None:
    """Follow a rank's clock where the runtime has measured it again: between two readings it drifts evenly."""
    ends = [reader.first_rows for reader in readers[1:]] + [{name: len(frames[name]) for name in _TIMES}]
    for reader, end in zip(readers, ends, strict=True):
        if not reader.clock_readings or reader.header is None:
            continue
        offset_ns = reader.header.offset_ns
        at_ns = np.array([_BASE_NS, *(at for at, _ in reader.clock_readings)], dtype=np.int64)
        change_ns = np.array([0, *(offset - offset_ns for _, offset in reader.clock_readings)])

        def corrected(times: Times, at: Times = at_ns, change: Times = change_ns) -> Times:
            return times + np.rint(np.interp(times, at, change)).astype(np.int64)

        for name, columns in _TIMES.items():
            map_times(frames[name], columns, slice(reader.first_rows[name], end[name]), corrected)


def _start_at_zero(frames: dict[str, Any]) -> None:
    """Let time begin with the first event of the run."""
    first_ns = min(
        (int(frames[name][columns[0]].min()) for name, columns in _TIMES.items() if len(frames[name])),
        default=_BASE_NS,
    )

    def shifted(times: Times) -> Times:
        return times - first_ns

    for name, columns in {**_TIMES, "arrivals": ("arrival_ns",)}.items():
        map_times(frames[name], columns, slice(None), shifted)
