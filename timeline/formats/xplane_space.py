"""What is in a file of the XPlane format, as it is there: planes of lines of events, with their names.

Numbers of fields are those of xplane.proto (OpenXLA's tsl/profiler).  Of an event its name, its times and where its message lies
are kept; stats are decoded when somebody asks for them.
"""
# ruff: noqa: PLR2004  numbers of fields

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ..read.protobuf import BYTES, FIXED64, VARINT, WireError, double, places, read_varint, signed
from ..read.source import Source
from ..scanning import check_proportion

#: Times beyond this are damage: 292 years have 2 ** 63 ns.
MAX_NS: Final = 2**61
_MAX_NAME: Final = 4096
_PS_IN_NS: Final = 1000
#: An event of this format takes a seventh of one in JSON.
_DENSER: Final = 7
#: The tag of a plane.
_PLANE: Final = 0x0A

Stat = int | float | str | None
Range = tuple[int, int]
"""Where a message begins and ends in the file."""


def _numbers() -> "array[int]":
    return array("q")


@dataclass(slots=True)
class Line:
    """Events of one thread, stream, or other row."""

    name: str = ""
    number: int = 0
    timestamp_ns: int = 0
    what: "array[int]" = field(default_factory=_numbers)
    """Of each event its number in `Plane.names`."""
    start_ns: "array[int]" = field(default_factory=_numbers)
    """On the file's clock."""
    dur_ns: "array[int]" = field(default_factory=_numbers)
    begin: "array[int]" = field(default_factory=_numbers)
    """Where the event's message begins in the file."""
    end: "array[int]" = field(default_factory=_numbers)

    def __len__(self) -> int:
        return len(self.what)


@dataclass(slots=True)
class Plane:
    """What one observer has seen: the host's threads, a device."""

    name: str = ""
    lines: list[Line] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    described: dict[int, Range] = field(default_factory=dict)
    """What a name stands for, with stats that all such events have."""
    stat_names: dict[int, str] = field(default_factory=dict)
    stats: dict[str, Stat] = field(default_factory=dict)


class Space:
    """The content of a file."""

    def __init__(self, source: Source) -> None:
        """Read it; what is cut or damaged is counted.

        Raises:
            TraceError: it cannot be read, or holds next to nothing in very many events.
        """
        self.source = source
        self.data = memoryview(source.read())
        self.planes: list[Plane] = []
        self.hosts: list[str] = []
        self.events = self._texts = 0
        at = 0
        try:
            for number, kind, value, end in places(self.data, 0, len(self.data)):
                if kind == BYTES:
                    at = end
                    if number == 1:
                        self._read_plane(value, end)
                    elif number == 4:
                        self.hosts.append(self.text(value, end))
        except WireError:
            self._read_cut_plane(at)

    def _read_cut_plane(self, at: int) -> None:
        """What is left of a plane whose end is missing."""
        self.source.dropped["truncated"] += 1
        if at < len(self.data) and self.data[at] == _PLANE:
            try:
                _, begin = read_varint(self.data, at + 1)
            except WireError:
                return
            self._read_plane(begin, len(self.data), is_cut=True)

    def _read_plane(self, at: int, end: int, *, is_cut: bool = False) -> None:
        plane = Plane()
        stats: list[Range] = []
        try:
            for number, kind, value, over in places(self.data, at, end):
                if kind != BYTES:
                    continue
                if number == 2:
                    plane.name = self.text(value, over)
                elif number == 3:
                    self._read_line(plane, value, over)
                elif number == 4:
                    self._read_name(plane, value, over)
                elif number == 5:
                    key, begin, finish = self._entry(value, over)
                    plane.stat_names[key] = self._text_in(begin, finish, 2)
                    self._texts += 1
                elif number == 6:
                    stats.append((value, over))
        except WireError:
            if not is_cut:
                self.source.dropped["broken"] += 1
        plane.stats = dict(self._stats(plane, stats))
        self.planes.append(plane)
        check_proportion(
            self.source, nbytes=_DENSER * len(self.data), events=self.events, texts=self._texts + 8 * len(self.planes)
        )

    def _read_name(self, plane: Plane, at: int, end: int) -> None:
        key, begin, finish = self._entry(at, end)
        self._texts += 1
        plane.described[key] = begin, finish
        plane.names[key] = self._text_in(begin, finish, 2)

    def _read_line(self, plane: Plane, at: int, end: int) -> None:
        line = Line()
        events = _numbers()
        shown = ""
        try:
            for number, kind, value, over in places(self.data, at, end):
                if number == 4 and kind == BYTES:
                    events.append(value)
                    events.append(over)
                elif number == 2 and kind == BYTES:
                    line.name = self.text(value, over)
                elif number == 11 and kind == BYTES:
                    shown = self.text(value, over)
                elif number == 1 and kind == VARINT:
                    line.number = value
                elif number == 3 and kind == VARINT:
                    line.timestamp_ns = signed(value)
        except WireError:
            self.source.dropped["broken"] += 1
        line.name = line.name or shown
        plane.lines.append(line)
        self._texts += 1
        if not -MAX_NS < line.timestamp_ns < MAX_NS:
            self.source.dropped["impossible_time"] += len(events) // 2
            return
        for row in range(0, len(events), 2):
            try:
                self._read_event(line, events[row], events[row + 1])
            except WireError:
                self.source.dropped["broken"] += 1

    def _read_event(self, line: Line, at: int, end: int) -> None:
        what = offset = duration = 0
        for number, kind, value, _ in places(self.data, at, end):
            if kind == VARINT:
                if number == 1:
                    what = value
                elif number == 2:
                    offset = value
                elif number == 3:
                    duration = value
                elif number == 5:  # a count of something, without a time
                    return
        self.events += 1
        offset, duration = signed(offset), signed(duration)
        start = line.timestamp_ns + offset // _PS_IN_NS
        if duration < 0 or not -MAX_NS < start < MAX_NS:
            self.source.dropped["impossible_time"] += 1
            return
        line.what.append(signed(what))
        line.start_ns.append(start)
        # From the nanosecond in which it begins to that in which it ends, so that what is nested stays so.
        line.dur_ns.append(line.timestamp_ns + (offset + duration) // _PS_IN_NS - start)
        line.begin.append(at)
        line.end.append(end)

    def stats(self, plane: Plane, line: Line, row: int) -> dict[str, Stat]:
        """The stats of an event by name."""
        return self.stats_in(plane, line.begin[row], line.end[row], 4)

    def stats_of_name(self, plane: Plane, number: int) -> dict[str, Stat]:
        """The stats that all events of a name have."""
        at, end = plane.described.get(number, (0, 0))
        return self.stats_in(plane, at, end, 5)

    def stats_in(self, plane: Plane, at: int, end: int, number: int) -> dict[str, Stat]:
        """The stats in the fields of this number of a message."""
        try:
            found = [
                (value, over)
                for key, kind, value, over in places(self.data, at, end)
                if key == number and kind == BYTES
            ]
        except WireError:
            return {}
        return dict(self._stats(plane, found))

    def _stats(self, plane: Plane, found: list[Range]) -> Iterator[tuple[str, Stat]]:
        """Names and values; those of kinds that are not known are left out."""
        for at, end in found:
            name, value = "", None
            try:
                for number, kind, content, over in places(self.data, at, end):
                    if number == 1 and kind == VARINT:
                        name = plane.stat_names.get(signed(content), "")
                    else:
                        value = self._value(plane, number, kind, (content, over))
            except WireError:
                continue
            if name and value is not None:
                yield name, value

    def _value(self, plane: Plane, number: int, kind: int, content: Range) -> Stat:
        if number == 2 and kind == FIXED64:
            return double(content[0])
        if number == 3 and kind == VARINT:
            return content[0]
        if number == 4 and kind == VARINT:
            return signed(content[0])
        if number == 5 and kind == BYTES:
            return self.text(*content)
        if number == 7 and kind == VARINT:
            return plane.stat_names.get(signed(content[0]), "")
        return None

    def _entry(self, at: int, end: int) -> tuple[int, int, int]:
        """Key of an entry of a map, and where its message lies."""
        key = begin = finish = 0
        for number, kind, value, over in places(self.data, at, end):
            if number == 1 and kind == VARINT:
                key = signed(value)
            elif number == 2 and kind == BYTES:
                begin, finish = value, over
        return key, begin, finish

    def _text_in(self, at: int, end: int, number: int) -> str:
        for key, kind, value, over in places(self.data, at, end):
            if key == number and kind == BYTES:
                return self.text(value, over)
        return ""

    def text(self, at: int, end: int) -> str:
        """A text, of which a hostile file may make much."""
        return bytes(self.data[at : min(end, at + _MAX_NAME)]).decode("utf-8", "replace")
