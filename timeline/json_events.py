"""Events out of Chrome-trace JSON, whatever state the file is in.

The fast path decodes large pieces of the array at once.  A piece that is not valid JSON goes through the slow path, which
looks at one event at a time, repairs what people's writers get wrong (control characters, bad escapes, bad UTF-8, NaN),
and where that fails drops the event and goes on at the next.  Both forms of the format are read: the array, closed or
not, and the object with `traceEvents`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import msgspec

#: How much is decoded at once.  Smaller costs calls, larger costs memory.
PIECE_NBYTES: Final = 4 * 1024 * 1024


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
    s: str = ""
    bp: str = ""
    args: msgspec.Raw = msgspec.Raw(b"")


_decode_many: Final = msgspec.json.Decoder(list[Event]).decode
_decode_one: Final = msgspec.json.Decoder(Event).decode
_decode_any: Final = msgspec.json.Decoder().decode

_BOUNDARY: Final = re.compile(rb"\}\s*,\s*(?=\{)")
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}]', re.DOTALL)
#: One character of what may stand before an event: longer patterns take quadratic time on runs of blank lines.
_NEXT_EVENT: Final = re.compile(rb"[\s,\]\[](?=\{)")
_OPEN, _CLOSE = b"{}"
_BAD_ESCAPE: Final = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_TRACE_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[')


def looks_like_events(head: bytes) -> bool:
    """Whether a file that begins like this can hold trace events."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return start[:1] == b"[" or (start[:1] == b"{" and b'"traceEvents"' in head)


def iterate_events(data: bytes, dropped: Counter[str]) -> Iterator[list[Event]]:
    """The events of a file, in pieces, in file order.

    Args:
        dropped: is added to for what could not be used: `truncated` (the last event is cut), `broken` (one in the middle),
            `unclosed_array`; `repaired` counts events that could be used after all.
    """
    position = _start_of_events(data)
    length = len(data)
    while position < length:
        end = min(position + PIECE_NBYTES, length)
        cut = _last_boundary(data, position, end) if end < length else length
        try:
            piece = data[position:cut].strip(b" \t\r\n,")
            if cut == length:
                piece = _without_tail(piece)
            events = _decode_many(b"[" + piece + b"]")
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            events, position = _one_by_one(data, position, cut, dropped)
        else:
            position = cut
        if events:
            yield events
    if data.rstrip()[-1:] not in {b"]", b"}"} or data.rstrip()[-2:-1] == b",":
        dropped["unclosed_array"] += 1


def _start_of_events(data: bytes) -> int:
    head = data[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
    if head[:1] == b"{":
        found = _TRACE_EVENTS.search(data)
        return found.end() if found else len(data)
    return data.find(b"[") + 1


def _last_boundary(data: bytes, start: int, end: int) -> int:
    """End of the last event that is complete before `end`, its comma included; `end` if there is none."""
    window = max(start, end - 65536)
    last = end
    for match in _BOUNDARY.finditer(data, window, end + 4096):
        last = match.end()
    return last


def _without_tail(piece: bytes) -> bytes:
    """The last piece of an array without the bracket; in the object form what follows the array goes, too."""
    if piece[-1:] == b"]":
        return piece[:-1].rstrip(b" \t\r\n,")
    return piece


def _one_by_one(data: bytes, start: int, end: int, dropped: Counter[str]) -> tuple[list[Event], int]:
    """Events from `start` on, up to the first that ends at or after `end`, and where that is."""
    events: list[Event] = []
    position = start
    while position < end:
        begin = data.find(b"{", position)
        if begin < 0:
            return events, len(data)
        if b"]" in data[position:begin]:  # the array is over: the object form goes on with other keys
            return events, len(data)
        stop = _end_of_object(data, begin)
        event = _parse(data[begin:stop], dropped) if stop > 0 else None
        if event is not None:
            events.append(event)
            position = stop
            continue
        following = _NEXT_EVENT.search(data, begin + 1)
        if following is None:
            dropped["truncated" if stop < 0 else "broken"] += 1
            return events, len(data)
        dropped["broken"] += 1
        position = following.end()
    return events, position


#: An event is hardly longer; without a limit one stray quote would make each resynchronisation read to the end.
_LONGEST_EVENT: Final = 2 * 1024 * 1024


def _end_of_object(data: bytes, begin: int) -> int:
    depth = 0
    for token in _TOKEN.finditer(data, begin, min(len(data), begin + _LONGEST_EVENT)):
        byte = data[token.start()]
        if byte == _OPEN:
            depth += 1
        elif byte == _CLOSE:
            depth -= 1
            if depth == 0:
                return token.end()
    return -1


def _parse(text: bytes, dropped: Counter[str]) -> Event | None:
    try:
        return _decode_one(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:
        repaired = _BAD_ESCAPE.sub(r"\\\\", text.decode("utf-8", "replace"))
        fields: Any = json.loads(repaired, strict=False)
        event = _from_fields(fields)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
        return None
    dropped["repaired"] += 1
    return event


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
        if name in known and not isinstance(known[name], (int, str)):
            known[name] = str(known[name])
    for name in ("ph", "name", "cat", "s", "bp"):
        if name in known and not isinstance(known[name], str):
            known[name] = str(known[name])
    return Event(**known)


def args_of(event: Event) -> dict[str, Any]:
    """The args of an event as a dictionary; empty if they are none."""
    if not event.args:
        return {}
    try:
        args = _decode_any(event.args)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        try:
            args = json.loads(bytes(event.args).decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            return {}
    return args if isinstance(args, dict) else {}


def nanoseconds(microseconds: float) -> int:
    """A time of the format as an integer."""
    return round(microseconds * 1000)
