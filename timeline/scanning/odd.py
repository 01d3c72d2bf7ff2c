"""Events that are not as the format has them: repaired where that is possible, dropped and counted where not.

Both scanners come here with what they do not take themselves, so that they agree on what becomes of it.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any, Final

import msgspec

#: An event is hardly longer; without a limit one stray quote would make each resynchronisation read to the end.
LONGEST_EVENT: Final = 2 * 1024 * 1024

#: Integers with more digits are no ranks, threads or ids: they are kept as text.
MAX_DIGITS: Final = 18

#: What is nested deeper in args is left out where they have to be written anew.
MAX_DEPTH: Final = 100

#: Times in microseconds from here on do not fit into nanoseconds.
MAX_US: Final = 9 * 10**15

#: Floats from here on may stand for integers that they are not.
_EXACT: Final = 1e15

#: Bytes that may be looked at in vain; after that an end is looked for nearby only, so that a file of nothing but damage takes
#: seconds and not hours.
_PATIENCE_NBYTES: Final = 8 * 1024 * 1024
_NEARBY_NBYTES: Final = 4 * 1024


class Event(msgspec.Struct, gc=False):
    """One event of the Trace Event Format, with the fields that readers look at."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    id: int | str = ""
    args: msgspec.Raw = msgspec.Raw(b"")


class _LooseEvent(msgspec.Struct, gc=False):
    """The same of a writer that takes numbers for text, or text for numbers."""

    ph: str | int | float | bool = ""
    name: str | int | float | bool = ""
    cat: str | int | float | bool = ""
    pid: int | float | bool | str = 0
    tid: int | float | bool | str = 0
    ts: float | str = 0.0
    dur: float | str = 0.0
    id: int | float | bool | str = ""
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Times(msgspec.Struct, gc=False):
    """The times of an event as they are written."""

    ts: msgspec.Raw = msgspec.Raw(b"0")
    dur: msgspec.Raw = msgspec.Raw(b"0")


decode_one: Final = msgspec.json.Decoder(Event).decode
_decode_loose: Final = msgspec.json.Decoder(_LooseEvent).decode
_decode_times: Final = msgspec.json.Decoder(_Times).decode
_decode_any: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode

#: A string may be cut by the end of what has been read.
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{}]', re.DOTALL)
#: One character of what may stand before an event: longer patterns take quadratic time on runs of blank lines.
_NEXT_EVENT: Final = re.compile(rb"[\s,\[\]](?=\{)")
_OPEN, _CLOSE = b"{}"
_BAD_ESCAPE: Final = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')


class OddEvents:
    """Takes up the reading wherever a scanner stops."""

    def __init__(self, dropped: Counter[str]) -> None:
        """Begin.

        Args:
            dropped: is added to for what could not be used: `truncated` (the last event is cut), `broken` (one in the middle),
                `impossible_time`; `repaired` counts events that could be used after all.
        """
        self._dropped = dropped
        self._looking_for: str | None = None
        """Why an event was given up, while the next one is looked for."""
        self.array_is_over = False
        self._wasted_nbytes = 0

    @property
    def _reach(self) -> int:
        """How far the end of an event may be from its beginning."""
        return LONGEST_EVENT if self._wasted_nbytes < _PATIENCE_NBYTES else _NEARBY_NBYTES

    def read(
        self, data: bytes | bytearray, position: int, end: int, *, final: bool
    ) -> tuple[Event | None, bytes, int, bool]:
        """Take what stands at `position`: one event, or what has to be skipped to come to one.

        Args:
            final: whether nothing comes after `end`.

        Returns:
            The event, if there is one; its text; where to go on; and whether more bytes are needed to do so.
        """
        if self._looking_for is not None:
            return self._look_for_next(data, position, end, final=final)
        begin = data.find(b"{", position, end)
        if data.find(b"]", position, end if begin < 0 else begin) >= 0:
            self.array_is_over = True
            return None, b"", data.find(b"]", position, end), False
        if begin < 0:
            return None, b"", end, not final
        reach = self._reach
        stop = _end_of_object(data, begin, min(end, begin + reach))
        if stop < 0 and not final and end - begin < reach:
            return None, b"", begin, True
        text = bytes(data[begin:stop]) if stop > 0 else b""
        event = self._parse(text) if text else None
        if event is not None:
            return event, text, stop, False
        self._looking_for = "truncated" if stop < 0 else "broken"
        self._wasted_nbytes += (stop if stop > 0 else min(end, begin + reach)) - begin
        return self._look_for_next(data, begin + 1, end, final=final)

    def _look_for_next(
        self, data: bytes | bytearray, position: int, end: int, *, final: bool
    ) -> tuple[Event | None, bytes, int, bool]:
        for following in _NEXT_EVENT.finditer(data, position, end):
            begin, reach = following.end(), self._reach
            limit = min(end, begin + reach)
            stop = _end_of_object(data, begin, limit)
            if stop < 0 and not final and end - begin < reach:
                return None, b"", following.start(), True
            # Objects in the args of what was given up are no events.
            if data.find(b'"ph"', begin, stop if stop > 0 else limit) >= 0:
                self._dropped["broken"] += 1
                self._looking_for = None
                return None, b"", begin, False
            self._wasted_nbytes += (stop if stop > 0 else limit) - begin
        if final:
            assert self._looking_for is not None
            self._dropped[self._looking_for] += 1
            self._looking_for = None
            return None, b"", end, False
        # What stands before the next event may be the last character.
        return None, b"", max(position, end - 1), True

    def _parse(self, text: bytes) -> Event | None:
        try:
            return decode_one(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass
        event = _of_loose(text)
        if event is not None:
            self._dropped["repaired"] += 1
            return event
        try:
            repaired = _BAD_ESCAPE.sub(r"\\\\", text.decode("utf-8", "replace"))
            fields: Any = json.loads(repaired, strict=False)
            event = _from_fields(fields)
        except (ValueError, TypeError, RecursionError, OverflowError, msgspec.MsgspecError):
            return None
        self._dropped["repaired"] += 1
        return event

    def canonical(self, event: Event, text: bytes) -> Iterator[bytes]:
        """The event as plain JSON that no scanner finds odd, the truest first; none if its times are beyond all clocks."""
        try:
            times = _decode_times(text)
            start, duration = _decimal(times.ts), _decimal(times.dur)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, InvalidOperation, ValueError):
            start, duration = _decimal(repr(event.ts).encode()), _decimal(repr(event.dur).encode())
        if max(abs(start), abs(duration)) >= MAX_US:
            self._dropped["impossible_time"] += 1
            return
        fields: dict[str, Any] = {
            "ph": event.ph if len(event.ph) == 1 and event.ph.isprintable() and event.ph.isascii() else "",
            "name": plain(event.name),
            "cat": plain(event.cat),
            "pid": plain(event.pid),
            "tid": plain(event.tid),
        }
        if event.id != "":
            fields["id"] = plain(event.id)
        told = _encode(fields)[:-1] + f',"ts":{start:.3f},"dur":{duration:.3f}'.encode()
        if not event.args:
            yield told + b"}"
            return
        args = bytes(event.args)
        yield told + b',"args":' + args + b"}"
        yield told + b',"args":' + _encode(plain(_loads(args))) + b"}"
        yield told + b',"args":{}}'


def _decimal(text: bytes | msgspec.Raw) -> Decimal:
    """Microseconds to the nearest nanosecond, halves away from zero."""
    value = Decimal(bytes(text).decode().strip('"'))
    if not value.is_finite() or abs(value) >= MAX_US:
        return Decimal(MAX_US)
    return value.quantize(Decimal("0.001"), rounding=ROUND_HALF_UP)


def plain(value: Any, depth: int = 0) -> Any:
    """Something that any JSON reader takes: no lone surrogates, no endless numbers, nothing below MAX_DEPTH."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int):
        return value if abs(value) < 10**MAX_DIGITS else str(value)
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    if isinstance(value, (dict, list)) and depth > MAX_DEPTH:
        return None
    if isinstance(value, dict):
        return {plain(str(key)): plain(item, depth + 1) for key, item in value.items()}
    return [plain(item, depth + 1) for item in value] if isinstance(value, list) else value


def _loads(text: bytes) -> Any:
    try:
        return json.loads(_BAD_ESCAPE.sub(r"\\\\", text.decode("utf-8", "replace")), strict=False)
    except (ValueError, RecursionError):
        return {}


def _end_of_object(data: bytes | bytearray, begin: int, end: int) -> int:
    depth = 0
    for token in _TOKEN.finditer(data, begin, end):
        byte = data[token.start()]
        if byte == _OPEN:
            depth += 1
        elif byte == _CLOSE:
            depth -= 1
            if depth == 0:
                return token.end()
    return -1


def _of_loose(text: bytes) -> Event | None:
    """What `_from_fields` makes of an event whose fields are only of other types than they should be; None for any other."""
    try:
        loose = _decode_loose(text)
        start, duration = float(loose.ts), float(loose.dur)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
        return None
    if not (abs(start) < float("inf") and abs(duration) < float("inf")):
        return None
    told = (loose.ph, loose.name, loose.cat, loose.pid, loose.tid, loose.id)
    if any(type(value) is float and abs(value) >= _EXACT for value in told):
        return None  # it may have been an integer of more digits than a float has
    phase, name, category = map(str, told[:3])
    process, thread, number = map(_number_or_text, told[3:])
    return Event(phase, name, category, process, thread, start, duration, number, loose.args)


def _number_or_text(value: float | str) -> int | str:
    return value if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)) else str(value)


def _from_fields(fields: dict[str, Any]) -> Event:
    """An event from a decoded object; numbers that are text are taken as numbers.

    Raises:
        TypeError, ValueError: it has no use as an event.
    """
    known = {name: fields[name] for name in Event.__struct_fields__ if name in fields}
    known["args"] = msgspec.Raw(json.dumps(fields.get("args", {})).encode())
    for name in ("ts", "dur"):
        if name in known:
            known[name] = float(known[name])
            if not abs(known[name]) < float("inf"):
                raise ValueError(f"{name} is not finite")
    for name in ("pid", "tid", "id"):
        if name in known and (isinstance(known[name], bool) or not isinstance(known[name], (int, str))):
            known[name] = str(known[name])
    for name in ("ph", "name", "cat"):
        if name in known and not isinstance(known[name], str):
            known[name] = str(known[name])
    return Event(**known)


def decode_args(text: bytes | msgspec.Raw) -> dict[str, Any]:
    """Args as a dictionary; empty if they are none."""
    if not text:
        return {}
    try:
        args = _decode_any(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        args = _loads(bytes(text))
    return args if isinstance(args, dict) else {}


def args_of(event: Event) -> dict[str, Any]:
    """The args of an event as a dictionary; empty if they are none."""
    return decode_args(event.args)
