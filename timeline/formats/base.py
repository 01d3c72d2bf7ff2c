"""What a reader is: one module a format, with these two functions."""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from ..model.trace import Trace
from ..read.source import Source

Progress = Callable[[int, int], None]
"""Called with the bytes read and the bytes in all."""


class Format(Protocol):
    """A trace format."""

    NAME: str

    def sniff(self, head: bytes) -> bool:
        """Whether a file that begins with `head` is of this format."""

    def read(self, sources: Sequence[Source], progress: Progress) -> Trace:
        """Read files that belong together.

        Raises:
            TraceError: there is nothing in them worth reading.
        """


def count_up(sources: Sequence[Source], progress: Progress) -> Callable[[int], None]:
    """What adds up the bytes read of several files, and reports them."""
    total = sum(source.path.stat().st_size for source in sources)
    done = 0
    lock = threading.Lock()

    def add(nbytes: int) -> None:
        nonlocal done
        with lock:  # several files are read side by side
            done += nbytes
            # Of packed files more comes out than lies on the disk.
            now = min(done, total)
        progress(now, total)

    return add
