"""Files as bytes: plain, gzip or zstd, whole or cut."""

import io
import os
import stat
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from ..errors import TraceError, TraceNotFoundError

#: No file may unpack to more than this: a few kilobytes of gzip can claim any size.
MAX_NBYTES: Final = 64 * 1024**3

HEAD_NBYTES: Final = 64 * 1024

_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_STEP_NBYTES: Final = 1 << 20


@dataclass(slots=True)
class Source:
    """One file of a trace."""

    path: Path
    dropped: Counter[str] = field(default_factory=Counter)
    """What of it could not be used, by reason; readers add to it."""
    most_nbytes: int = field(default_factory=lambda: int(os.environ.get("TLKIT_MAX_TRACE_BYTES") or MAX_NBYTES))
    """It is refused if it unpacks to more."""

    def open(self) -> io.RawIOBase:
        """Its content, unpacked, as a stream.

        Raises:
            TraceError: it cannot be read; also while it is read, if it unpacks to more than `most_nbytes`.
        """
        file = self.open_plain()
        try:
            magic = file.read(4)
            file.seek(0)
        except OSError as error:
            file.close()
            raise _unreadable(self.path, error) from error
        if magic[:2] == _GZIP_MAGIC:
            return _Unpacking(self, file, _Gzip())
        if magic == _ZSTD_MAGIC:
            return _Unpacking(self, file, _Zstd(file))
        return file

    def open_plain(self) -> io.FileIO:
        """The file itself, as it lies on the disk.

        Raises:
            TraceError: it cannot be read, or is no file: a pipe or a device may never end, or never begin.
        """
        try:
            # Without waiting for the other end: a pipe that nobody writes to would hold us here for ever.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise _unreadable(self.path, error) from error
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            os.close(descriptor)
            what = "a pipe" if stat.S_ISFIFO(mode) else "a folder" if stat.S_ISDIR(mode) else "a device"
            raise TraceError(f"{self.path} is {what}, not a file: write the trace to a file first")
        return io.FileIO(descriptor)

    @property
    def is_plain(self) -> bool:
        """Whether it is not packed, so that any part of it can be read."""
        with self.open_plain() as file:
            magic = file.read(4)
        return magic[:2] != _GZIP_MAGIC and magic != _ZSTD_MAGIC

    def read(self) -> bytes:
        """Its content, unpacked.

        Raises:
            TraceError: it cannot be read, or is larger than `most_nbytes`.
        """
        with self.open() as stream:
            if isinstance(stream, io.FileIO):
                return stream.read() or b""
            # In place: to read it all at once would have it twice in memory.
            content, block = io.BytesIO(), bytearray(_STEP_NBYTES)
            while count := stream.readinto(block):
                content.write(memoryview(block)[:count])
            return content.getvalue()

    def head(self) -> bytes:
        """The first bytes, unpacked, for telling the format.

        Raises:
            TraceError: it cannot be read.
        """
        # What is wrong with the rest is counted when all of it is read.
        with Source(self.path, most_nbytes=self.most_nbytes).open() as stream:
            head = b""
            while len(head) < HEAD_NBYTES and (more := stream.read(HEAD_NBYTES - len(head))):
                head += more
            return head


def _unreadable(path: Path, error: OSError) -> TraceError:
    if isinstance(error, FileNotFoundError):
        return TraceNotFoundError(f"{path}: no such file; did the run write its timeline elsewhere?")
    return TraceError(f"cannot read {path}: {error.strerror}")


class _Gzip:
    """Unpacks gzip, several members one behind the other as well."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._pending = b""
        self._is_over = False

    def unpack(self, file: IO[bytes], most: int) -> bytes | None:
        """More content; b"" at the end, None where the file is cut or damaged."""
        while not self._is_over:
            if not self._pending:
                self._pending = file.read(_STEP_NBYTES)
                if not self._pending:
                    return None
            try:
                part = self._stream.decompress(self._pending, most)
            except zlib.error:
                return None
            self._pending = self._stream.unconsumed_tail
            if self._stream.eof:
                rest = self._stream.unused_data or file.read(_STEP_NBYTES)
                if rest[:2] == _GZIP_MAGIC or rest == _GZIP_MAGIC[:1]:
                    self._stream, self._pending = zlib.decompressobj(zlib.MAX_WBITS | 16), rest
                else:  # padding after the last member
                    self._is_over = True
            if part:
                return part
        return b""


class _Zstd:
    """Unpacks zstd."""

    def __init__(self, file: IO[bytes]) -> None:
        import pyarrow as pa  # noqa: PLC0415  most files are not packed

        self._stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")

    def unpack(self, file: IO[bytes], most: int) -> bytes | None:
        """As `_Gzip.unpack`."""
        del file
        try:
            return bytes(self._stream.read(most))
        except OSError:
            return None


class _Unpacking(io.RawIOBase):
    """The content of a packed file."""

    def __init__(self, source: Source, file: IO[bytes], codec: _Gzip | _Zstd) -> None:
        self._source, self._file, self._codec = source, file, codec
        self._nbytes = 0
        self._is_over = False

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        view = memoryview(target).cast("B")
        if self._is_over or not len(view):
            return 0
        try:
            part = self._codec.unpack(self._file, min(len(view), _STEP_NBYTES))
        except OSError as error:
            raise _unreadable(self._source.path, error) from error
        if not part:
            self._is_over = True
            if part is None:
                self._source.dropped["truncated_archive"] += 1
            return 0
        self._nbytes += len(part)
        if self._nbytes > self._source.most_nbytes:
            raise TraceError(
                f"{self._source.path} unpacks to more than {self._source.most_nbytes} bytes: it is refused; "
                "TLKIT_MAX_TRACE_BYTES sets the limit"
            )
        view[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._file.close()
        super().close()
