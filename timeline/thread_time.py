"""What a thread got of the processor: how long it ran, and how long it was ready to run and no core was free.

The kernel counts the second in `/proc/thread-self/schedstat` (Documentation/scheduler/sched-stats.rst: time on the processor
and time waiting on a run queue, in ns).  The first field of that file lags behind by up to a tick, so that the thread's CPU
clock is asked instead.  Where the file is missing, as outside Linux, waiting is unknown.
"""

import os
import threading
import time
from typing import Final

_PATH: Final = "/proc/thread-self/schedstat"
_MOST_NBYTES: Final = 80


class ThreadTime:
    """The times of the calling thread.  One reading costs two system calls, less than a microsecond."""

    def __init__(self) -> None:
        self._threads = threading.local()

    def read(self) -> tuple[int, int]:
        """Nanoseconds that the thread has run, and that it has waited for a core; -1 if that is unknown."""
        try:
            descriptor = self._threads.descriptor
        except AttributeError:
            descriptor = self._threads.descriptor = _open()
        if descriptor >= 0:
            try:
                return time.thread_time_ns(), int(os.pread(descriptor, _MOST_NBYTES, 0).split()[1])
            except (OSError, ValueError, IndexError):
                self._threads.descriptor = -1
        return time.thread_time_ns(), -1


def _open() -> int:
    """The file stays with the thread that opened it, whoever reads."""
    try:
        return os.open(_PATH, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
