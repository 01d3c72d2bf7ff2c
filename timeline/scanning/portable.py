"""The scanner in Python, on msgspec: what reads where there is no compiler, and what the compiled one is held to."""

import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import compress, repeat
from operator import attrgetter, is_not
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .odd import MAX_DIGITS, MAX_US, Event

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
#: So far from a half is not rounded the wrong way.
_CLEAR: Final = 0.4

#: As much of the args as tells where they are, most of the time.
_PREFIX: Final = 24


class _Written(msgspec.Struct, gc=False):
    """An event with its time as it is written."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: msgspec.Raw = msgspec.Raw(b"0")
    dur: float = 0.0
    id: int | str = ""
    args: msgspec.Raw = msgspec.Raw(b"")


class _Duration(msgspec.Struct, gc=False):
    """Nothing but the duration, as it is written."""

    dur: msgspec.Raw = msgspec.Raw(b"0")


_decode_durations: Final = msgspec.json.Decoder(list[_Duration]).decode
_decode_written: Final = msgspec.json.Decoder(list[_Written]).decode
_fields_of: Final = attrgetter("ph", "name", "cat", "pid", "tid", "ts", "dur", "id", "args")


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
        if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
            raise _OddError
        return super().__missing__(value)


class _Phases(dict[str, int]):
    """The code of a phase."""

    def __missing__(self, text: str) -> int:
        code = self[text] = ord(text) if len(text) == 1 and text.isascii() and text.isprintable() else 0
        return code


_PHASES: Final = _Phases()


def _rounded(microseconds: Sequence[float]) -> np.ndarray | None:
    """Times in ns; None where floats are not exact enough to tell."""
    floats = np.array(microseconds, np.float64)
    scaled = floats * 1000
    rounded = np.rint(scaled)
    if len(floats) and not (np.max(np.abs(floats)) < _EXACT_US and np.max(np.abs(scaled - rounded)) < _CLEAR):
        return None
    return rounded.astype(np.int64)


def _exactly(written: Sequence[msgspec.Raw]) -> np.ndarray:
    """Times in ns, as they are written, halves away from zero."""
    try:
        decimals = pa.array(list(map(bytes, written)), pa.string()).cast(pa.decimal128(38, 9))
    except pa.ArrowInvalid as error:
        raise _OddError from error
    whole = pc.round(decimals, ndigits=3, round_mode="half_towards_infinity")
    if pc.max(pc.abs(whole)).as_py() >= MAX_US:
        raise _OddError
    # The number behind the decimal is the nanoseconds; it lies in the lower half of 16 bytes.
    halves = np.frombuffer(whole.cast(pa.decimal128(22, 3)).buffers()[1], np.int64)
    return halves[: 2 * len(written) : 2].copy()


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
        self._is_exact = False
        self._begin()
        count = len(integers + texts)
        fields = [(f"f{number}", Any, None) for number in range(count)]
        # Of one name attrgetter makes no tuple.
        self._values_of: Any = attrgetter(*(name for name, _, _ in fields)) if count > 1 else lambda item: (item.f0,)
        raw = [(f"f{number}", msgspec.Raw, msgspec.Raw(b"")) for number in range(count)]
        rename = {f"f{number}": key for number, key in enumerate(self._integers + self._texts)}
        self._decode_args = msgspec.json.Decoder(
            list[msgspec.defstruct("Args", fields, rename=rename, gc=False)]  # type: ignore[misc]  # made here
        ).decode
        self._decode_written = msgspec.json.Decoder(msgspec.defstruct("Written", raw, rename=rename, gc=False)).decode

    def _begin(self) -> None:
        self.rows = 0
        self._parts: dict[str, list[np.ndarray]] = {name: [] for name in _COLUMNS}
        self._numbers: dict[str, _Numbers] = {"name": _Numbers(), "category": _Numbers()}
        self._numbers |= {"process": _Typed(), "thread": _Typed(), "id": _Typed()}
        keys = self._integers + self._texts
        self._key_parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {key: [] for key in keys}
        self._key_texts = {key: _Numbers() for key in self._texts}

    @property
    def distinct(self) -> int:
        """Texts that are kept."""
        return sum(map(len, self._numbers.values())) + sum(map(len, self._key_texts.values()))

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
                # No end of an event in sight: the last one of the file or of the range, or a long one.
                return ODD, position
            try:
                with memoryview(buffer) as view:
                    piece = bytes(view[position:cut])
                self._take(piece, base + position)
            except (msgspec.MsgspecError, UnicodeError, RecursionError, _OddError):
                if self._step <= SMALL_NBYTES:
                    return ODD, position
                self._step = max(SMALL_NBYTES, self._step // 8)
            else:
                position, self._step = cut, min(PIECE_NBYTES, self._step * 2)

    def take_one(self, event: bytes) -> None:
        """Take one event, if it is not odd."""
        with suppress(msgspec.MsgspecError, UnicodeError, RecursionError, _OddError):
            self._take(event, 0)

    def _take(self, piece: bytes, base: int) -> None:
        array = b"".join([b"[", piece.rstrip(b" \t\r\n,"), b"]"])
        start = None
        if not self._is_exact:
            phases, names, categories, processes, threads, starts, durations, ids, raw_args = zip(
                *map(_fields_of, _decode_many(array)), strict=True
            )
            start = _rounded(starts)
        if start is None:
            # From here on: a file whose times count from 1970 needs it everywhere.
            self._is_exact = True
            phases, names, categories, processes, threads, starts, durations, ids, raw_args = zip(
                *map(_fields_of, _decode_written(array)), strict=True
            )
            start = _exactly(starts)
        duration = _rounded(durations)
        if duration is None:
            duration = _exactly([written.dur for written in _decode_durations(array)])
        numbers = self._numbers
        columns: dict[str, np.ndarray] = {
            "phase": np.array(list(map(_PHASES.__getitem__, phases)), np.uint8),
            "name": _column(numbers["name"], names),
            "category": _column(numbers["category"], categories),
            "process": _column(numbers["process"], processes),
            "thread": _column(numbers["thread"], threads),
            "start": start,
            "duration": duration,
        }
        if self._with_ids:
            columns["id"] = np.array([-1 if value == "" else numbers["id"][value] for value in ids], np.int32)
        args = list(map(bytes, raw_args))
        found = self._find_keys(args)
        # Nothing can be odd any more.
        columns["args_start"] = _places(piece, args, base)
        columns["args_nbytes"] = np.fromiter(map(len, args), np.int32, len(args))
        for name, values in columns.items():
            self._parts[name].append(values)
        for key, rows, key_values in found:
            self._key_parts[key].append((rows + np.uint32(self.rows), key_values))
        self.rows += len(args)

    def _find_keys(self, args: Sequence[bytes]) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """What the args say of the keys that are kept: key, rows, values or numbers of texts."""
        are_objects = np.fromiter(map(bytes.startswith, args, repeat(b"{")), bool, len(args))
        rows = np.flatnonzero(are_objects).astype(np.uint32)
        if not len(rows) or not self._key_parts:
            return []
        objects = args if len(rows) == len(args) else [args[row] for row in rows.tolist()]
        decoded = self._decode_args(b"[" + b",".join(objects) + b"]")
        found = []
        for position, (key, values) in enumerate(
            zip(self._key_parts, zip(*map(self._values_of, decoded), strict=True), strict=True)
        ):
            absent = values.count(None)
            if absent == len(values):
                continue
            of_rows, present = rows, list(values)
            if absent:
                is_there = np.fromiter(map(is_not, values, repeat(None)), bool, len(values))
                of_rows, present = rows[is_there], list(compress(values, is_there))
            kinds = set(map(type, present))
            if key not in self._key_texts:
                if kinds != {int} or max(map(abs, present)) >= 10**MAX_DIGITS:
                    good = [type(value) is int and abs(value) < 10**MAX_DIGITS for value in present]
                    of_rows = of_rows[np.array(good, bool)]
                    present = [value for value, is_good in zip(present, good, strict=True) if is_good]
                found.append((key, of_rows, np.array(present, np.int64)))
                continue
            texts = self._key_texts[key]
            if kinds == {int}:
                present = list(map(str, present))
            elif kinds != {str}:
                field = f"f{position}"
                present = [
                    self._text_of(value, args[int(row)], field) for value, row in zip(present, of_rows, strict=True)
                ]
            found.append((key, of_rows, _column(texts, present)))
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


def _column(numbers: _Numbers, values: Sequence[Any]) -> np.ndarray:
    return np.array(list(map(numbers.__getitem__, values)), np.int32)


def _places(piece: bytes, args: Sequence[bytes], base: int) -> np.ndarray:
    """Where the args of events lie in the file; -1 for none.  They come in order, so each is the next one that reads so."""
    places = []
    position, find, starts_with = 0, piece.find, piece.startswith
    for text in args:
        if not text:
            places.append(-1)
            continue
        # To look for the first bytes is much cheaper than to look for all.
        position = find(text[:_PREFIX], position)
        if not starts_with(text, position):
            position = find(text, position)
        places.append(base + position)
        position += len(text)
    return np.array(places, np.int64)


def _last_boundary(buffer: bytes | bytearray, start: int, end: int) -> int:
    """End of the last event that is complete before `end` and followed by another, its comma included; -1 if there is none."""
    width = 4096
    while True:
        window = max(start, end - width)
        last = -1
        for match in _BOUNDARY.finditer(buffer, window, end):
            last = match.end()
        if last >= 0 or window == start:
            return last
        width *= 8
