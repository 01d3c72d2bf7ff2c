"""Events out of Chrome-trace JSON as objects, for readers that follow them one by one.

Large pieces of the array are decoded at once.  A piece that is not valid JSON is read one event at a time (`scanning/odd.py`).
Both forms of the format are read: the array, closed or not, and the object with `traceEvents`.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from ..scanning import MAX_US, Event, OddEvents, args_of

#: How much is decoded at once.  Smaller costs calls, larger costs memory.
PIECE_NBYTES: Final = 1024 * 1024

_decode_many: Final = msgspec.json.Decoder(list[Event]).decode
_BOUNDARY: Final = re.compile(rb"\}\s*,\s*(?=\{)")
_TRACE_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[')


def iterate_events(data: bytes, dropped: Counter[str]) -> Iterator[list[Event]]:
    """The events of a file, in pieces, in file order.

    Args:
        dropped: is added to for what could not be used (see `OddEvents`); `unclosed_array` if the array has no end.
    """
    position = _start_of_events(data)
    length = len(data)
    odd = OddEvents(dropped)
    while position < length and not odd.array_is_over:
        end = min(position + PIECE_NBYTES, length)
        cut = _last_boundary(data, position, end) if end < length else length
        piece = data[position:cut].strip(b" \t\r\n,")
        if cut == length and piece[-1:] == b"]":
            piece = piece[:-1].rstrip(b" \t\r\n,")
        try:
            events = _decode_many(b"[" + piece + b"]")
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            events, position = _one_by_one(data, position, cut, odd)
        else:
            position = cut
        if events:
            yield events
    end_of_file = data[-256:].rstrip()
    if end_of_file[-1:] not in {b"]", b"}"} or end_of_file[-2:-1] == b",":
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


def _one_by_one(data: bytes, start: int, end: int, odd: OddEvents) -> tuple[list[Event], int]:
    """Events from `start` on, up to the first that ends at or after `end`, and where that is."""
    events: list[Event] = []
    position = start
    while position < end and not odd.array_is_over:
        event, _, position, _ = odd.read(data, position, len(data), final=True)
        if event is not None:
            events.append(event)
    return events, position


def nanoseconds(microseconds: float) -> int:
    """A time of the format as an integer."""
    return round(microseconds * 1000)


__all__ = ["MAX_US", "Event", "args_of", "iterate_events", "nanoseconds"]
