"""What the ranks print: cut into lines, with the rank before each, passed on to the console and to files.

Bytes stay bytes: no line is decoded, so neither a half character at the end of a read nor a console with another
encoding can spoil one.
"""

import fcntl
import os
import re
import select
import sys
from collections.abc import Callable, Sequence
from typing import IO, Final

_LINE: Final = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)")

#: A line longer than this is passed on in parts, so that it need not be kept as a whole.
LONGEST_LINE_NBYTES: Final = 1 << 20

_CHUNK_NBYTES: Final = 1 << 16


class LinePrefixer:
    r"""Puts a prefix before each line of a stream, however the stream is cut.

    A line ends with "\n", "\r" or both: progress bars rewrite their line with "\r".

    >>> lines = LinePrefixer(lambda: b"[0]")
    >>> lines.feed(b"one\ntw"), lines.feed(b"o\r"), lines.finish()
    (b'[0]one\n', b'[0]two\r', b'')
    """

    def __init__(self, prefix: Callable[[], bytes]) -> None:
        """`prefix` is asked whenever lines are complete, as it may hold the time."""
        self._prefix = prefix
        self._parts: list[bytes] = []
        self._nbytes = 0
        self._is_begun = False
        """Whether the beginning of the line has been passed on already."""
        self._after_return = False

    def feed(self, data: bytes) -> bytes:
        """The lines that `data` completes."""
        ready = []
        if self._after_return and data.startswith(b"\n"):  # the second half of "\r\n"
            ready.append(b"\n")
            data = data[1:]
            self._after_return = False
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if end:
            text = b"".join((*self._parts, data[:end]))
            ready.append(self._with_prefixes(_LINE.findall(text)))
            self._parts, self._nbytes = [], 0
            self._after_return = text.endswith(b"\r")
        if rest := data[end:]:
            self._parts.append(rest)
            self._nbytes += len(rest)
            self._after_return = False
        if self._nbytes > LONGEST_LINE_NBYTES:
            ready.append(self._with_prefixes([b"".join(self._parts)]))
            self._parts, self._nbytes = [], 0
            self._is_begun = True
        return b"".join(ready)

    def finish(self) -> bytes:
        """A last line without end.  It gets one, or the next rank's line would begin in its middle."""
        if not self._parts and not self._is_begun:
            return b""
        last = self._with_prefixes([b"".join(self._parts) + b"\n"])
        self._parts, self._nbytes = [], 0
        return last

    def _with_prefixes(self, lines: Sequence[bytes]) -> bytes:
        prefix = self._prefix()
        first = b"" if self._is_begun else prefix
        self._is_begun = False
        return first + prefix.join(lines)


class Sink:
    """A file descriptor that lines go to, until writing fails: the ranks go on without it."""

    def __init__(self, descriptor: int | None, path: str = "") -> None:
        """`path` names the file if it is ours to close; the console has none.  None writes nowhere."""
        self._descriptor = descriptor
        self._path = path

    def write(self, data: bytes) -> None:
        """Write all of `data`, unless this sink is closed."""
        rest = memoryview(data)
        while rest and self._descriptor is not None:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # whoever shares the terminal or pipe may have made it so
                select.select([], [self._descriptor], [])
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.close()
        # Nobody is left to tell when the console has gone, as in `tl-run … | head`.
        if self._path:
            sys.stderr.write(f"tl-run: {self._path}: {error.strerror}; the rest of this output is not in the file\n")

    def close(self) -> None:
        """Write no more."""
        if self._path and self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


class RankStream:
    """Standard output or error of one rank."""

    def __init__(self, source: IO[bytes], lines: LinePrefixer, console: Sink, copy: Sink | None) -> None:
        """`source` is the reading end of a pipe; `console` is shared by all ranks, `copy` is this stream's own."""
        self.source = source
        self._lines = lines
        self._console = console
        self._copy = copy
        os.set_blocking(source.fileno(), False)

    def pump(self) -> int | None:
        """Pass on what has arrived.

        Returns:
            bytes read, 0 at the end of the stream, None if nothing has arrived.
        """
        try:
            data = os.read(self.source.fileno(), _CHUNK_NBYTES)
        except BlockingIOError:
            return None
        self._write(self._lines.feed(data) if data else self._lines.finish())
        return len(data)

    def finish(self) -> None:
        """Pass on what a rank that has ended left in the pipe, and close it.

        A process that outlived the rank may hold the pipe open and write for ever.  What the rank wrote was there
        first, and is no more than a pipe holds.
        """
        capacity_nbytes = fcntl.fcntl(self.source.fileno(), fcntl.F_GETPIPE_SZ)
        passed_nbytes = 0
        while passed_nbytes < capacity_nbytes and (nbytes := self.pump()):
            passed_nbytes += nbytes
        self._write(self._lines.finish())
        self.source.close()
        if self._copy is not None:
            self._copy.close()

    def _write(self, data: bytes) -> None:
        self._console.write(data)
        if self._copy is not None:
            self._copy.write(data)
