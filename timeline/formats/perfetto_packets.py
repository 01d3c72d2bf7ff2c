"""The packets of a trace of Perfetto, one after the other."""

import zlib
from collections.abc import Callable, Generator, Iterator
from typing import Final

from ..errors import TraceError
from ..read.protobuf import WireError, fields, read_varint
from ..read.source import Source

#: The tag of a packet in the file.
PACKETS: Final = b"\x0a"
#: The tag of field 50, which is alone where it is.
_COMPRESSED: Final = b"\x92\x03"
_BLOCK_NBYTES: Final = 1 << 20
#: A packet is some tens of bytes, those of buffers of the kernel some hundred thousand.
_MAX_PACKET_NBYTES: Final = 64 * 1024 * 1024
_LONGEST_LENGTH: Final = 11


def packets(source: Source, progress: Callable[[int], None]) -> Iterator[memoryview]:
    """The packets of a file; what is cut or damaged ends it, and is counted.

    Raises:
        TraceError: it cannot be read, or unpacks to too much.
    """
    budget = [source.most_nbytes]
    with source.open() as stream:
        rest = b""
        while block := stream.read(_BLOCK_NBYTES):
            progress(len(block))
            data = memoryview(rest + block)
            at = yield from _whole(source, data, budget)
            if at < 0:
                return
            rest = bytes(data[at:])
            if len(rest) > _MAX_PACKET_NBYTES:
                source.dropped["broken"] += 1
                return
        if rest:
            source.dropped["truncated"] += 1


def _whole(source: Source, data: memoryview, budget: list[int]) -> Generator[memoryview, None, int]:
    """The packets that are whole; returns where the next one begins, -1 if there is no telling."""
    at, end = 0, len(data)
    while at < end:
        if data[at] != PACKETS[0]:
            source.dropped["broken"] += 1
            return -1
        try:
            length, start = read_varint(data, at + 1)
        except WireError:
            if end - at > _LONGEST_LENGTH:
                source.dropped["broken"] += 1
                return -1
            return at
        if start + length > end:
            return at
        at = start + length
        yield from _unpacked(source, data[start:at], budget)
    return at


def _unpacked(source: Source, packet: memoryview, budget: list[int]) -> Iterator[memoryview]:
    """The packet, or those that are compressed in it."""
    if len(packet) < 3 or bytes(packet[:2]) != _COMPRESSED:  # noqa: PLR2004  a tag and a length
        yield packet
        return
    try:
        ((_, _, content),) = fields(packet)
        stream = zlib.decompressobj()
        unpacked = stream.decompress(content, budget[0] + 1)
    except (ValueError, zlib.error):
        source.dropped["broken"] += 1
        return
    budget[0] -= len(unpacked)
    if budget[0] < 0:
        raise TraceError(
            f"{source.path} unpacks to more than {source.most_nbytes} bytes: it is refused; TLKIT_MAX_TRACE_BYTES sets the limit"
        )
    data, at = memoryview(unpacked), 0
    while at < len(data):
        try:
            length, start = read_varint(data, at + 1)
        except WireError:
            length, start = len(data), at
        if data[at] != PACKETS[0] or start + length > len(data):
            source.dropped["broken"] += 1
            return
        yield data[start : start + length]
        at = start + length
