"""Files as bytes: plain or gzip, whole or cut."""

import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from .errors import TraceError, TraceNotFoundError

#: No file may unpack to more than this: a few kilobytes of gzip can claim any size.
MAX_NBYTES: Final = 16 * 1024**3

HEAD_NBYTES: Final = 64 * 1024

_GZIP_MAGIC: Final = b"\x1f\x8b"
_STEP_NBYTES: Final = 1 << 22


@dataclass(slots=True)
class Source:
    """One file of a trace."""

    path: Path
    dropped: Counter[str] = field(default_factory=Counter)
    """What of it could not be used, by reason; readers add to it."""

    def read(self, limit: int = MAX_NBYTES) -> bytes:
        """Its content, unpacked.

        Raises:
            TraceError: it cannot be read, or is larger than `limit`.
        """
        try:
            raw = self.path.read_bytes()
        except OSError as error:
            raise _unreadable(self.path, error) from error
        if raw[:2] != _GZIP_MAGIC:
            return raw
        content, complete = _gunzip(raw, limit)
        if len(content) >= limit:
            raise TraceError(f"{self.path} unpacks to more than {limit} bytes: it is refused")
        if not complete:
            self.dropped["truncated_gzip"] += 1
        return content

    def head(self) -> bytes:
        """The first bytes, unpacked, for telling the format.

        Raises:
            TraceError: it cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                raw = file.read(HEAD_NBYTES)
        except OSError as error:
            raise _unreadable(self.path, error) from error
        return _gunzip(raw, HEAD_NBYTES)[0] if raw[:2] == _GZIP_MAGIC else raw


def _unreadable(path: Path, error: OSError) -> TraceError:
    if isinstance(error, FileNotFoundError):
        return TraceNotFoundError(f"{path}: no such file; did the run write its timeline elsewhere?")
    return TraceError(f"cannot read {path}: {error.strerror}")


def _gunzip(raw: bytes, limit: int) -> tuple[bytes, bool]:
    """What can be unpacked of `raw`, up to `limit`, and whether that is all of it."""
    parts: list[bytes] = []
    size = 0
    rest = raw
    while rest:
        stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
        pending = rest
        while not stream.eof:
            try:
                part = stream.decompress(pending, min(_STEP_NBYTES, limit - size))
            except zlib.error:
                return b"".join(parts), False
            if not part and not stream.unconsumed_tail:
                return b"".join(parts), False
            parts.append(part)
            size += len(part)
            if size >= limit:
                return b"".join(parts), False
            pending = stream.unconsumed_tail
        rest = stream.unused_data
        if rest[:2] != _GZIP_MAGIC:  # padding after the last member
            break
    return b"".join(parts), True
