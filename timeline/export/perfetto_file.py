"""A trace as Perfetto's own protobuf: a fraction of the JSON, opened by the Perfetto UI and by trace_processor.

Names and texts of args are written once and numbered, times are the difference to the event before, and packets are compressed
many at once, as Perfetto's own service does it (`compression_type: COMPRESSION_TYPE_DEFLATE`).  Field numbers are those of
Perfetto's protos/perfetto/trace/trace_packet.proto and track_event/*.proto.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Final

import numpy as np

from ..model.trace import Trace
from ..read.protobuf import number, real, text, varint
from ..scanning import decode_args, plain
from ..vocabulary import LaneKind

SUFFIXES: Final = (".pftrace", ".perfetto-trace")

#: Our lanes come first on the screen, in this order.
_FIRST_LANES: Final = (LaneKind.STEPS, LaneKind.COMPUTE, LaneKind.DATA, LaneKind.COMMUNICATION)
_BEGIN, _END, _COUNTER = 1, 2, 4
_SEQUENCE: Final = number(10, 1)
#: The event's names are those written before.
_NEEDS_NAMES: Final = number(13, 2)
_BOOT_CLOCK, _OUR_CLOCK = 6, 64
_EXPLICIT_ORDER: Final = 3
#: Packets that are compressed together.
_AT_ONCE: Final = 20_000
_COMPRESSED: Final = 50
_MAX_JSON: Final = 10_000


def write_perfetto(trace: Trace, file: BinaryIO, progress: Callable[[int, int], None]) -> None:
    """Write spans with their args, and counters.

    Spans of a lane that overlap without one holding the other get tracks of their own, of the same name.
    """
    writer = _Writer(trace)
    clocks, *described = writer.head()
    file.write(clocks + _compressed(described))
    times, bodies = writer.events()
    order = np.argsort(times, kind="stable")
    last = 0
    for first in range(0, len(order), _AT_ONCE):
        chosen = order[first : first + _AT_ONCE]
        packets = []
        for at, row in zip(times[chosen].tolist(), chosen.tolist(), strict=True):
            packet = number(8, at - last) + bodies[row]
            packets.append(b"\x0a" + varint(len(packet)) + packet)
            last = at
        file.write(_compressed(packets))
        progress(min(first + _AT_ONCE, len(order)), len(order))


def _compressed(packets: Sequence[bytes]) -> bytes:
    """One packet that holds others, of which each has its tag and its length."""
    return text(1, text(_COMPRESSED, zlib.compress(b"".join(packets))))


class _Writer:
    """Makes the packets of a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._tracks: list[bytes] = []
        self._annotations: dict[str, int] = {}
        self._texts: dict[str, int] = {}
        self._times: list[np.ndarray] = []
        self._bodies: list[bytes] = []
        self._process = {rank: position + 1 for position, rank in enumerate(trace.meta.ranks)}
        self._next = len(self._process) + 1
        tables = ((trace.spans, "start_ns"), (trace.counters, "ts_ns"))
        earliest = [int(table[column].min()) for table, column in tables if len(table)]
        self._shift_ns = -min([0, *earliest])
        """Incremental times cannot be negative."""
        self._collect()

    def head(self) -> list[bytes]:
        """Packets of the clock, the names and the tracks."""
        clocks = text(1, number(1, _BOOT_CLOCK) + number(2, 0))
        clocks += text(1, number(1, _OUR_CLOCK) + number(2, 0) + number(3, 1) + number(4, 1))
        first = _SEQUENCE + number(13, 1) + text(6, clocks) + text(59, number(58, _OUR_CLOCK))
        spans = self._trace.spans
        names = b"".join(
            text(field, _entry(position, str(name)))
            for field, names in ((2, spans["name"].cat.categories), (1, spans["category"].cat.categories))
            for position, name in enumerate(names)
        )
        numbered = ((3, self._annotations), (29, self._texts))
        names += b"".join(
            text(field, _entry(position, name)) for field, known in numbered for name, position in known.items()
        )
        packets = [first, _SEQUENCE + _NEEDS_NAMES + text(12, names), *self._tracks]
        return [text(1, packet) for packet in packets]

    def events(self) -> tuple[np.ndarray, list[bytes]]:
        """Times in ns, and the rest of each packet; in order within each track."""
        times = np.concatenate([np.zeros(0, np.int64), *self._times])
        return times + self._shift_ns, self._bodies

    def _collect(self) -> None:
        for rank, uuid in self._process.items():
            host = self._trace.meta.hosts.get(rank, "")
            name = f"rank {rank}" + (f" ({host})" if host else "")
            process = text(3, number(1, rank + 1) + text(6, name))
            self._tracks.append(
                _SEQUENCE + text(60, number(1, uuid) + process + number(11, _EXPLICIT_ORDER) + number(12, rank))
            )
        spans = self._trace.spans
        order = {str(kind): position for position, kind in enumerate(_FIRST_LANES)}
        keys = spans[["rank", "lane_kind", "lane"]].astype({"lane_kind": "str", "lane": "str"})
        groups: Any = keys.groupby(["rank", "lane_kind", "lane"], sort=False).indices
        for position, key in enumerate(sorted(groups, key=lambda item: (item[0], order.get(item[1], 99), item[1:]))):
            self._add_lane(int(key[0]), str(key[2]), position, np.sort(groups[key]))
        self._add_counters()

    def _track(self, rank: int, name: str, position: int, *more: bytes) -> int:
        """A track of a rank's process; its number."""
        uuid, self._next = self._next, self._next + 1
        described = number(1, uuid) + number(5, self._process[rank]) + text(2, name) + number(12, position)
        self._tracks.append(_SEQUENCE + text(60, described + b"".join(more)))
        return uuid

    def _add_lane(self, rank: int, lane: str, position: int, rows: np.ndarray) -> None:
        spans = self._trace.spans
        start = spans["start_ns"].to_numpy()[rows]
        end = start + spans["dur_ns"].to_numpy()[rows]
        names = spans["name"].cat.codes.to_numpy()[rows].tolist()
        categories = spans["category"].cat.codes.to_numpy()[rows].tolist()
        args = spans["args_row"].to_numpy()[rows].tolist()
        bodies: dict[tuple[int, int], bytes] = {}
        for parts in _nested(start, end):
            track = number(11, self._track(rank, lane, position))
            closing = _SEQUENCE + _NEEDS_NAMES + text(11, number(9, _END) + track)
            bodies.clear()
            times = []
            for at, row in parts:
                times.append(at)
                if row < 0:
                    self._bodies.append(closing)
                    continue
                key = names[row], categories[row]
                event = bodies.get(key)
                if event is None:
                    event = number(9, _BEGIN) + track + number(10, names[row] + 1) + number(3, categories[row] + 1)
                    bodies[key] = event
                told = self._annotated(self._trace.raw_args[args[row]]) if args[row] >= 0 else b""
                self._bodies.append(_SEQUENCE + _NEEDS_NAMES + text(11, event + told))
            self._times.append(np.array(times, np.int64))

    def _annotated(self, args: bytes) -> bytes:
        """Args as annotations, whose names and texts are numbered as well."""
        result = []
        for name, value in decode_args(args).items():
            iid = number(1, self._annotations.setdefault(name, len(self._annotations)) + 1)
            if isinstance(value, bool):
                told = number(2, int(value))
            elif isinstance(value, int) and abs(value) < 2**63:
                told = number(4, value)
            elif isinstance(value, float):
                told = real(5, value)
            elif isinstance(value, str):
                told = number(17, self._texts.setdefault(value, len(self._texts)) + 1)
            else:
                told = text(9, _json(value))
            result.append(text(4, iid + told))
        return b"".join(result)

    def _add_counters(self) -> None:
        counters = self._trace.counters
        if not len(counters):
            return
        keys = counters[["rank", "name"]].astype({"name": "str"})
        groups: Any = keys.groupby(["rank", "name"], sort=True).indices
        times, values = counters["ts_ns"].to_numpy(), counters["value"].to_numpy()
        for position, key in enumerate(groups):
            rows = np.sort(groups[key])
            rows = rows[np.argsort(times[rows], kind="stable")]
            track = number(11, self._track(int(key[0]), str(key[1]), 1000 + position, text(8, b"")))
            self._times.append(times[rows])
            self._bodies += [
                _SEQUENCE + text(11, number(9, _COUNTER) + track + real(44, value)) for value in values[rows].tolist()
            ]


def _entry(position: int, name: str) -> bytes:
    """An entry of the interned names."""
    return number(1, position + 1) + text(2, name)


def _json(value: object) -> str:
    return json.dumps(plain(value), separators=(",", ":"))[:_MAX_JSON] if value is not None else "null"


def _nested(start: np.ndarray, end: np.ndarray) -> Iterator[list[tuple[int, int]]]:
    """The lane's begins (time, row) and ends (time, -1), divided so that within each part they nest."""
    rest = np.lexsort((-end, start)).tolist()
    starts, ends = start.tolist(), end.tolist()
    while rest:
        part: list[tuple[int, int]] = []
        open_until: list[int] = []
        overlapping = []
        for row in rest:
            begin, finish = starts[row], ends[row]
            while open_until and open_until[-1] <= begin:
                part.append((open_until.pop(), -1))
            if open_until and finish > open_until[-1]:
                overlapping.append(row)
                continue
            part.append((begin, row))
            open_until.append(finish)
        while open_until:
            part.append((open_until.pop(), -1))
        yield part
        rest = overlapping
