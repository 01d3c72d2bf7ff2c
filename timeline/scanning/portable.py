"""The scanner in Python, on msgspec: what reads where there is no compiler, and what the compiled one is held to."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .odd import MOST_DIGITS, MOST_US, Event

#: How much is decoded at once; what is odd in a piece makes all of it slow, so it is halved down to the small size.
PIECE_NBYTES: Final = 4 * 1024 * 1024
SMALL_NBYTES: Final = 16 * 1024

MORE, ODD, CLOSED, STOPPED = range(4)
"""Why `feed` has returned: at the end of what there is, before an odd event, at the end of the array, before `stop`."""

_COLUMNS: Final = (
    "phase",
    "name",
    "category",
    "process",
    "thread",
    "id",
    "start",
    "duration",
    "args_start",
    "args_nbytes",
)

_decode_many: Final = msgspec.json.Decoder(list[Event]).decode
_BOUNDARY: Final = re.compile(rb"\}\s*,\s*(?=\{)")

#: A time in microseconds up to here is exact to the nanosecond as a float, unless it has more than three decimals.
_EXACT_US: Final = 2**36


class _WrittenTimes(msgspec.Struct, gc=False):
    ts: msgspec.Raw = msgspec.Raw(b"0")
    dur: msgspec.Raw = msgspec.Raw(b"0")


_decode_times: Final = msgspec.json.Decoder(list[_WrittenTimes]).decode


class _OddError(Exception):
    """Something in this piece is for the slow path."""


class _Numbers(dict[Any, int]):
    """Numbers for values, in the order in which they come."""

    def __missing__(self, value: Any) -> int:
        number = self[value] = len(self)
        return number


class _Typed(_Numbers):
    """The same where 1 and "1" differ, and neither is True."""

    def __missing__(self, value: Any) -> int:
        if isinstance(value, int) and abs(value) >= 10**MOST_DIGITS:
            raise _OddError
        return super().__missing__(value)


def _nanoseconds(floats: np.ndarray, written: Callable[[], Sequence[msgspec.Raw]]) -> np.ndarray:
    """Times in ns: from floats where they are exact, from the text where not."""
    scaled = floats * 1000
    rounded = np.rint(scaled)
    if len(floats) and not (np.max(np.abs(floats)) < _EXACT_US and np.max(np.abs(scaled - rounded)) < 0.4):  # noqa: PLR2004
        try:
            decimals = pa.array([bytes(text) for text in written()], pa.string()).cast(pa.decimal128(38, 9))
        except pa.ArrowInvalid as error:
            raise _OddError from error
        whole = pc.round(decimals, ndigits=3, round_mode="half_towards_infinity")
        if pc.max(pc.abs(whole)).as_py() >= MOST_US:
            raise _OddError
        # The number behind the decimal is the nanoseconds; it lies in the lower half of 16 bytes.
        halves = np.frombuffer(whole.cast(pa.decimal128(22, 3)).buffers()[1], np.int64)
        return halves[: 2 * len(floats) : 2].copy()
    return rounded.astype(np.int64)


class PortableScanner:
    """Columns of trace events; the same in all as the compiled `Scanner`."""

    def __init__(self, integers: tuple[str, ...], texts: tuple[str, ...], with_ids: bool = False) -> None:  # noqa: FBT001, FBT002  as the compiled one
        """Begin with no events.

        Args:
            integers: args whose integers are kept.
            texts: args whose text is kept.
            with_ids: whether to keep the ids of events.
        """
        self._with_ids = with_ids
        self._integers, self._texts = integers, texts
        self._step = PIECE_NBYTES
        self._begin()
        count = len(integers + texts)
        fields = [(f"f{number}", Any, None) for number in range(count)]
        raw = [(f"f{number}", msgspec.Raw, msgspec.Raw(b"")) for number in range(count)]
        rename = {f"f{number}": key for number, key in enumerate(self._integers + self._texts)}
        self._decode_args = msgspec.json.Decoder(
            list[msgspec.defstruct("Args", fields, rename=rename, gc=False)]  # type: ignore[misc]  # made here
        ).decode
        self._decode_written = msgspec.json.Decoder(
            msgspec.defstruct("Written", raw, rename=rename, gc=False)
        ).decode

    def _begin(self) -> None:
        self.rows = 0
        self._parts: dict[str, list[np.ndarray]] = {name: [] for name in _COLUMNS}
        self._numbers: dict[str, _Numbers] = {"name": _Numbers(), "category": _Numbers()}
        self._numbers |= {"process": _Typed(), "thread": _Typed(), "id": _Typed()}
        keys = self._integers + self._texts
        self._key_parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {key: [] for key in keys}
        self._key_texts = {key: _Numbers() for key in self._texts}

    def feed(self, buffer: bytes | bytearray, start: int, end: int, base: int, stop: int) -> tuple[int, int]:
        """Take events from `buffer[start:end]`.

        Args:
            base: the offset of the buffer in the file.
            stop: no event is taken that begins at this offset of the file or later.

        Returns:
            Why it has come to an end (`MORE` and so on), and where in the buffer.
        """
        position = start
        while True:
            while position < end and buffer[position] in b" \t\r\n,":
                position += 1
            if position >= end:
                return MORE, position
            if buffer[position] == ord("]"):
                return CLOSED, position
            if buffer[position] != ord("{"):
                return ODD, position
            if base + position >= stop:
                return STOPPED, position
            cut = _last_boundary(buffer, position, min(end, position + self._step, max(stop - base, position + 1)))
            if cut < 0:
                # No end of an event in sight: the last one of the file, of the range, or a long one.
                return ODD, position
            try:
                self._take(bytes(buffer[position:cut]).rstrip(b" \t\r\n,"), base + position)
            except (msgspec.MsgspecError, UnicodeError, RecursionError, _OddError):
                if self._step <= SMALL_NBYTES:
                    return ODD, position
                self._step = max(SMALL_NBYTES, self._step // 8)
            else:
                position, self._step = cut, min(PIECE_NBYTES, self._step * 2)

    def _take(self, piece: bytes, base: int) -> None:
        events = _decode_many(b"[" + piece + b"]")
        row, count = self.rows, len(events)
        numbers = self._numbers
        start = _nanoseconds(
            np.array([event.ts for event in events], np.float64),
            lambda: [times.ts for times in _decode_times(b"[" + piece + b"]")],
        )
        duration = _nanoseconds(
            np.array([event.dur for event in events], np.float64),
            lambda: [times.dur for times in _decode_times(b"[" + piece + b"]")],
        )
        process = _column(numbers["process"], [event.pid for event in events])
        thread = _column(numbers["thread"], [event.tid for event in events])
        columns: dict[str, Any] = {
            "phase": np.array([_phase(event.ph) for event in events], np.uint8),
            "name": _column(numbers["name"], [event.name for event in events]),
            "category": _column(numbers["category"], [event.cat for event in events]),
            "process": process,
            "thread": thread,
            "start": start,
            "duration": duration,
        }
        if self._with_ids:
            ids = [event.id for event in events]
            columns["id"] = np.array([-1 if value == "" else numbers["id"][value] for value in ids], np.int32)
        args = [bytes(event.args) for event in events]
        starts, position, find = [], 0, piece.find
        for text in args:
            if text:
                position = find(text, position)
                starts.append(base + position)
                position += len(text)
            else:
                starts.append(-1)
        found = self._find_keys(args)
        # Nothing can be odd any more.
        columns["args_start"] = np.array(starts, np.int64)
        columns["args_nbytes"] = np.fromiter(map(len, args), np.int32, count)
        for name, values in columns.items():
            self._parts[name].append(values)
        for key, rows, key_values in found:
            self._key_parts[key].append((rows + np.uint32(row), key_values))
        self.rows += count

    def _find_keys(self, args: Sequence[bytes]) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """What the args say of the keys that are kept: key, rows, values or numbers of texts."""
        objects = [number for number, text in enumerate(args) if text[:1] == b"{"]
        if not objects or not self._key_parts:
            return []
        decoded = self._decode_args(b"[" + b",".join([args[number] for number in objects]) + b"]")
        found = []
        for position, key in enumerate(self._key_parts):
            field = f"f{position}"
            pairs = [
                (row, value)
                for row, item in zip(objects, decoded, strict=True)
                if (value := getattr(item, field)) is not None
            ]
            if key in self._key_texts:
                texts = self._key_texts[key]
                values = [texts[self._text_of(value, args[row], field)] for row, value in pairs]
                found.append((key, np.array([row for row, _ in pairs], np.uint32), np.array(values, np.int32)))
            else:
                pairs = [(row, value) for row, value in pairs if type(value) is int and abs(value) < 10**MOST_DIGITS]
                numbers = np.array([value for _, value in pairs], np.int64)
                found.append((key, np.array([row for row, _ in pairs], np.uint32), numbers))
        return found

    def _text_of(self, value: Any, args: bytes, field: str) -> str:
        """A value as text: strings as they are, the rest as it is written."""
        if type(value) is str:
            return value
        if type(value) is int:
            return str(value)
        return bytes(getattr(self._decode_written(args), field)).decode()

    def finish(self) -> tuple[dict[str, bytes], dict[str, list[Any]], dict[str, tuple[bytes, bytes, list[str]]]]:
        """The columns as bytes, the texts that they number, and the kept args; begins anew."""
        columns = {name: np.concatenate(parts).tobytes() if parts else b"" for name, parts in self._parts.items()}
        texts: dict[str, list[Any]] = {name: list(numbers) for name, numbers in self._numbers.items()}
        keys = {}
        for key, parts in self._key_parts.items():
            rows = b"".join(rows.tobytes() for rows, _ in parts)
            values = b"".join(values.tobytes() for _, values in parts)
            keys[key] = (rows, values, list(self._key_texts.get(key, ())))
        self._begin()
        return columns, texts, keys


def _phase(text: str) -> int:
    return ord(text) if len(text) == 1 and text < "\x80" else 0


def _column(numbers: _Numbers, values: list[Any]) -> np.ndarray:
    return np.array([numbers[value] for value in values], np.int32)


def _last_boundary(buffer: bytes | bytearray, start: int, end: int) -> int:
    """End of the last event that is complete before `end` and followed by another, its comma included; -1 if there is none."""
    window = max(start, end - 65536)
    while True:
        last = -1
        for match in _BOUNDARY.finditer(buffer, window, end):
            last = match.end()
        if last >= 0 or window == start:
            return last
        window = max(start, window - 4 * 65536)
