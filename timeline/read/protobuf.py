"""The wire format of protocol buffers, as much as traces of Perfetto and XPlane need: no schema, no code made by a compiler."""
# ruff: noqa: PLR2004  bits and bytes of the format

import struct
from collections.abc import Iterator
from typing import Any, Final

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

_MAX_VARINT_NBYTES: Final = 10
_ALL_BITS: Final = 0xFFFF_FFFF_FFFF_FFFF


class WireError(ValueError):
    """These bytes are no message."""


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number of up to 64 bits, and where it ends.

    Raises:
        WireError: it has no end.
    """
    result = shift = 0
    for position in range(at, min(at + _MAX_VARINT_NBYTES, len(data))):
        byte = data[position]
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & _ALL_BITS, position + 1
        shift += 7
    raise WireError("a number without an end")


def places(data: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number and wire type of the fields of the message at `data[at:end]`, in order, with what they hold.

    That is the value and 0 of a number, and the beginning and the end in `data` of anything else that has a length.

    Raises:
        WireError: it is damaged.
    """
    while at < end:
        tag = data[at]
        at += 1
        if tag >= 0x80:
            tag, at = read_varint(data, at - 1)
        kind = tag & 7
        if kind == VARINT:
            value = data[at] if at < end else 0x80
            if value < 0x80:
                at += 1
            else:
                value, at = read_varint(data, at)
            if at > end:
                raise WireError("a field reaches beyond its message")
            yield tag >> 3, kind, value, 0
        elif kind == BYTES:
            length, at = read_varint(data, at)
            if length > end - at:
                raise WireError("a field reaches beyond its message")
            yield tag >> 3, kind, at, at + length
            at += length
        elif kind in {FIXED64, FIXED32}:
            size = 8 if kind == FIXED64 else 4
            if size > end - at:
                raise WireError("a field reaches beyond its message")
            yield tag >> 3, kind, int.from_bytes(data[at : at + size], "little"), 0
            at += size
        else:
            raise WireError("a field of an unknown kind")


def fields(data: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and value of the fields of a message, in order.

    Raises:
        WireError: it is damaged.
    """
    for field, kind, value, end in places(data, 0, len(data)):
        yield field, kind, data[value:end] if kind == BYTES else value


def signed(value: Any) -> int:
    """An int64 or int32 as it was meant.

    Raises:
        WireError: the field holds something else.
    """
    if not isinstance(value, int):
        raise WireError("a text for a number")
    return value - (1 << 64) if value >> 63 else value


def double(value: Any) -> float:
    """A double out of its 64 bits.

    Raises:
        WireError: the field holds something else.
    """
    return float(struct.unpack("<d", (signed(value) & _ALL_BITS).to_bytes(8, "little"))[0])


def varint(value: int) -> bytes:
    """A number, not negative, as bytes."""
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def number(field: int, value: int) -> bytes:
    """A field with a number; negative ones take ten bytes."""
    return varint(field << 3 | VARINT) + varint(value & _ALL_BITS)


def text(field: int, value: str | bytes) -> bytes:
    """A field with a text, or with a message."""
    encoded = value if isinstance(value, bytes) else value.encode("utf-8", "replace")
    return varint(field << 3 | BYTES) + varint(len(encoded)) + encoded


def real(field: int, value: float) -> bytes:
    """A field with a double."""
    return varint(field << 3 | FIXED64) + struct.pack("<d", value)
