"""Track events of a trace of Perfetto, as spans and counters.

Numbers of fields are those of Perfetto's protos: trace_packet.proto, track_event/*.proto, interned_data.proto and
clock_snapshot.proto.
"""
# ruff: noqa: PLR2004  numbers of fields

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from ..model.columns import TableBuilder
from ..model.trace import MAX_RANKS
from ..read.protobuf import BYTES, WireError, double, fields, signed
from ..read.source import Source
from ..scanning import check_proportion, plain
from ..vocabulary import Category, LaneKind

_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_RANK_NAME: Final = re.compile(r"rank (\d{1,7})\b")
_CATEGORIES: Final = frozenset(map(str, Category))
#: Clocks from here on belong to a sequence of packets.
_FIRST_OWN_CLOCK: Final = 64
_BOOT_CLOCK: Final = 6
#: Times beyond this are damage: 292 years have 2 ** 63 ns.
_MAX_NS: Final = 2**62
_MAX_NAME: Final = 4096
_CHECKED_EVERY: Final = 65536

_encode: Final = msgspec.json.Encoder().encode


@dataclass(slots=True)
class _Clock:
    """How a sequence's own clock counts."""

    multiplier: int
    is_incremental: bool
    offset_ns: int
    last: int


@dataclass(slots=True)
class _Sequence:
    """What packets of one writer refer to: names that came before, and defaults."""

    names: dict[int, str] = field(default_factory=dict)
    categories: dict[int, str] = field(default_factory=dict)
    annotations: dict[int, str] = field(default_factory=dict)
    strings: dict[int, str] = field(default_factory=dict)
    track: int = 0
    clock: int = 0
    clocks: dict[int, _Clock] = field(default_factory=dict)


@dataclass(slots=True)
class _Track:
    """Where events are drawn."""

    name: str = ""
    parent: int = 0
    process: str = ""
    of_thread: str = ""
    """What its process is called where that has no track of its own."""
    multiplier: int = 1
    is_incremental: bool = False
    total: float = 0.0
    stack: list[tuple[int, str, str, int]] = field(default_factory=list)
    """Start, name, category and row of args of what is open."""


class Events:
    """Takes packets, and adds to the tables of a trace."""

    def __init__(
        self, source: Source, rank: int, spans: TableBuilder, counters: TableBuilder, args: list[bytes]
    ) -> None:
        self.count = 0
        self._source, self._file_rank = source, rank
        self._spans, self._counters, self._args = spans, counters, args
        self._sequences: dict[int, _Sequence] = {}
        self._tracks: dict[int, _Track] = {}
        self._offsets: dict[int, int] = {}
        """What to add to a built-in clock to get the boot clock."""
        self._nbytes = self._texts = self._packets = 0
        self._last_ns = 0
        self._places: dict[int, tuple[int, str]] = {}

    def take(self, packet: memoryview) -> None:
        """Follow one packet; one that is damaged is counted and has no effect."""
        self._packets += 1
        self._nbytes += len(packet)
        if self._packets % _CHECKED_EVERY == 0:
            self._check()
        try:
            self._follow(_message(packet))
        except (WireError, TypeError, AttributeError, IndexError):  # a field of another kind than the proto has
            self._source.dropped["broken"] += 1

    def _check(self) -> None:
        # An event of this format takes a third of one in JSON.
        check_proportion(
            self._source, nbytes=3 * self._nbytes, events=self.count, texts=self._texts + 8 * len(self._tracks)
        )

    def _follow(self, told: dict[int, Any]) -> None:
        number = told.get(10, 0)
        sequence = self._sequences.get(number)
        if sequence is None:
            sequence = self._sequences[number] = _Sequence()
            self._texts += 4
        if told.get(13, 0) & 1 or told.get(41):
            sequence = self._sequences[number] = _Sequence(clocks=sequence.clocks)
        if 6 in told:
            self._read_clocks(told[6], sequence)
        if 59 in told:
            for key, _, value in fields(told[59]):
                if key == 58:
                    sequence.clock = value
                elif key == 11:
                    sequence.track = _message(value).get(11, 0)
        if 12 in told:
            self._read_names(told[12], sequence)
        if 60 in told:
            self._read_track(told[60])
        if 11 in told:
            self._read_event(told, sequence)

    def _read_clocks(self, data: memoryview, sequence: _Sequence) -> None:
        known = [_message(value) for key, _, value in fields(data) if key == 1]
        at = {clock.get(1, 0): clock.get(2, 0) for clock in known if clock.get(1, 0) < _FIRST_OWN_CLOCK}
        boot = at.get(_BOOT_CLOCK, next(iter(at.values()), 0))
        self._offsets |= {clock: boot - now for clock, now in at.items()}
        for clock in known:
            if clock.get(1, 0) >= _FIRST_OWN_CLOCK:
                multiplier = clock.get(4, 1) or 1
                now = clock.get(2, 0)
                sequence.clocks[clock[1]] = _Clock(multiplier, bool(clock.get(3)), boot - now * multiplier, now)

    def _time_of(self, told: dict[int, Any], sequence: _Sequence) -> int:
        value = told.get(8, 0)
        number = told.get(58, sequence.clock)
        own = sequence.clocks.get(number)
        if own is not None:
            if own.is_incremental:
                value = own.last = (own.last + value) % 2**64
            return int(value) * own.multiplier + own.offset_ns
        return int(value) + self._offsets.get(number, 0)

    def _read_names(self, data: memoryview, sequence: _Sequence) -> None:
        tables = {1: sequence.categories, 2: sequence.names, 3: sequence.annotations, 29: sequence.strings}
        for key, kind, value in fields(data):
            table = tables.get(key)
            if table is None or kind != BYTES:
                continue
            entry = _message(value)
            table[entry.get(1, 0)] = _text(entry.get(2, b""))
            self._texts += 1

    def _read_track(self, data: memoryview) -> None:
        told = _message(data)
        track = self._tracks.setdefault(told.get(1, 0), _Track())
        track.parent = told.get(5, track.parent)
        name = told.get(2, told.get(10))
        if name is not None:
            track.name = _text(name)
        if 3 in told:
            process = _message(told[3])
            track.process = _text(process.get(6, b"")) or f"process {signed(process.get(1, 0))}"
        if 4 in told:
            thread = _message(told[4])
            track.name = _text(thread.get(5, b"")) or track.name or f"thread {signed(thread.get(2, 0))}"
            track.of_thread = f"process {signed(thread.get(1, 0))}"
        if 8 in told:
            counter = _message(told[8])
            track.multiplier = signed(counter.get(4, 1)) or 1
            track.is_incremental = bool(counter.get(5))
        self._places.clear()

    def _read_event(self, told: dict[int, Any], sequence: _Sequence) -> None:
        event: dict[int, Any] = {}
        notes: list[memoryview] = []
        for key, _, value in fields(told[11]):
            if key == 4:
                notes.append(value)
            else:
                event[key] = value
        self.count += 1
        at = self._time_of(told, sequence)
        if not -_MAX_NS < at < _MAX_NS:
            self._source.dropped["impossible_time"] += 1
            return
        self._last_ns = max(self._last_ns, at)
        uuid = event.get(11, sequence.track)
        track = self._tracks.get(uuid)
        if track is None:
            track = self._tracks[uuid] = _Track()
        kind, duration = _kind_of(event)
        if kind == _BEGIN:
            name = _text(event[23]) if 23 in event else sequence.names.get(event.get(10, 0), "")
            category = _text(event[22]) if 22 in event else self._category(event.get(3, 0), sequence)
            row = self._keep(notes, sequence) if notes else -1
            if duration >= 0:
                self._add(uuid, (at, name, category, row), at + min(duration, _MAX_NS))
            else:
                track.stack.append((at, name, category, row))
        elif kind == _END:
            if track.stack:
                self._add(uuid, track.stack.pop(), at)
            else:
                self._source.dropped["orphan_end"] += 1
        elif kind == _COUNTER:
            self._count(uuid, track, at, event)

    @staticmethod
    def _category(iid: Any, sequence: _Sequence) -> str:
        if isinstance(iid, memoryview):  # several, packed
            iid = iid[0] if len(iid) else 0
        return sequence.categories.get(iid, "")

    def _place(self, uuid: int) -> tuple[int, str]:
        """Rank and lane of a track."""
        found = self._places.get(uuid)
        if found is None:
            track, process, of_thread, at = self._tracks.get(uuid), "", "", uuid
            names: list[str] = []
            seen: set[int] = set()
            while track is not None and at not in seen and len(seen) < 16:
                seen.add(at)
                if track.name:
                    names.append(track.name)
                process, of_thread = process or track.process, of_thread or track.of_thread
                at = track.parent
                track = self._tracks.get(at) if at else None
            process = process or of_thread
            in_name = _RANK_NAME.match(process)
            rank = int(in_name[1]) if in_name and int(in_name[1]) <= MAX_RANKS else self._file_rank
            lane = names[0] if names else f"track {uuid}"
            if process and not in_name:
                lane = f"{process}: {lane}" if names else process
            found = self._places[uuid] = rank, lane[:_MAX_NAME]
        return found

    def _add(self, uuid: int, opened: tuple[int, str, str, int], end_ns: int) -> None:
        start, name, category, row = opened
        if end_ns < start:
            self._source.dropped["impossible_time"] += 1
            return
        rank, lane = self._place(uuid)
        known = category if category in _CATEGORIES else str(Category.OTHER)
        self._spans.add(rank, lane, str(LaneKind.OTHER), known, name, start, end_ns - start, row)

    def _count(self, uuid: int, track: _Track, at: int, event: dict[int, Any]) -> None:
        value = double(event[44]) if 44 in event else float(signed(event.get(30, 0)) * track.multiplier)
        if track.is_incremental:
            value = track.total = track.total + value
        if abs(value) < float("inf"):
            rank, lane = self._place(uuid)
            self._counters.add(rank, lane, at, value)

    def _keep(self, notes: list[memoryview], sequence: _Sequence) -> int:
        """Annotations as JSON; the row of the args."""
        found: dict[str, Any] = {}
        for note in notes:
            told = _message(note)
            name = _text(told[10]) if 10 in told else sequence.annotations.get(told.get(1, 0), "")
            found[name] = _annotation(told, sequence)
        self._args.append(_encode(plain(found)))
        return len(self._args) - 1

    def finish(self) -> None:
        """What is open ends with the file."""
        self._check()
        for uuid, track in self._tracks.items():
            while track.stack:
                self._source.dropped["unclosed_begin"] += 1
                self._add(uuid, track.stack.pop(), self._last_ns)


def _kind_of(event: dict[int, Any]) -> tuple[int, int]:
    """What an event is, and how long it takes if it says so itself, as Chrome's once did; else -1."""
    if event.get(9) or 6 not in event:
        return event.get(9, 0), -1
    legacy = _message(event[6])
    phase = legacy.get(2, 0)
    kind = {ord("B"): _BEGIN, ord("E"): _END, ord("X"): _BEGIN, ord("I"): _INSTANT}.get(phase, 0)
    return kind, signed(legacy.get(3, 0)) * 1000 if phase == ord("X") else -1


def _message(data: Any) -> dict[int, Any]:
    """The fields of a message by number; of those that come again the last."""
    if not isinstance(data, memoryview):
        raise WireError("a number for a message")
    return {number: value for number, _, value in fields(data)}


def _annotation(told: dict[int, Any], sequence: _Sequence) -> Any:
    """The value of an annotation; None for kinds that are not read."""
    makers: dict[int, Callable[[Any], Any]] = {
        2: bool,
        3: int,
        4: signed,
        5: double,
        6: _text,
        9: _json,
        17: lambda iid: sequence.strings.get(iid, ""),
    }
    return next((make(told[number]) for number, make in makers.items() if number in told), None)


def _json(value: Any) -> Any:
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _text(value: Any) -> str:
    if not isinstance(value, (bytes, memoryview)):
        raise WireError("a number for a text")
    return bytes(value[:_MAX_NAME]).decode("utf-8", "replace")
