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
_MAX_NBYTES: Final = 80


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
                return time.thread_time_ns(), int(os.pread(descriptor, _MAX_NBYTES, 0).split()[1])
            except (OSError, ValueError, IndexError):
                self._threads.descriptor = -1
        return time.thread_time_ns(), -1

    def forget(self) -> None:
        """In a forked child: what is open tells the times of its parent's thread."""
        self._threads = threading.local()


class StepTime:
    """What the training thread got of the processor in a step, and how much of that outside the parts that are metered.

    Waits are parts, too: a thread that waits for collectives executes some of them itself, which is no work of the loop.
    """

    def __init__(self, thread_time: ThreadTime) -> None:
        self.thread_time = thread_time
        """What is asked."""
        self._begun: tuple[int, int] | None = None
        self._process_ns = 0
        self._in_parts = [0, 0]

    def begin(self) -> None:
        """A step begins."""
        self._begun = self.thread_time.read()
        self._process_ns = time.process_time_ns()
        self._in_parts = [0, 0]

    def add(self, ran_ns: int, waited_ns: int) -> None:
        """A part of the step is over, in which the thread ran and waited for a core so long."""
        self._in_parts[0] += ran_ns
        self._in_parts[1] += waited_ns

    def end(self) -> tuple[int, int | None, int] | None:
        """The step is over.

        Returns:
            How long (ns) the thread ran outside the parts, how long it waited for a core there, None if that is unknown, and how
            long all threads of the process ran; None if the step's beginning was not seen.
        """
        if self._begun is None:
            return None
        ran, waited = self.thread_time.read()
        process_ns = time.process_time_ns() - self._process_ns
        # A part that reaches over the end of a step is counted whole where it ends.
        ran_ns = max(ran - self._begun[0] - self._in_parts[0], 0)
        is_known = waited >= 0 and self._begun[1] >= 0
        waited_ns = max(waited - self._begun[1] - self._in_parts[1], 0) if is_known else None
        self._begun = None
        return ran_ns, waited_ns, process_ns

    def forget(self) -> None:
        """The step that is under way is not this thread's."""
        self._begun = None


def _open() -> int:
    """The file stays with the thread that opened it, whoever reads."""
    try:
        return os.open(_PATH, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
