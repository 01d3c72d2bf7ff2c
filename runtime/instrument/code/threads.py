"""Which of the other threads of the process computes, and where in the code it is: it may have what the training needs.

A look is a span of its own lane as long as the thread has run since the look before.  Only the busiest thread has one, and
none if it waits by then in a library of Python's; of a wait in C, as time.sleep, nothing tells.
"""

import threading
import time
from types import FrameType
from typing import Final, NamedTuple

from .stacks import Seen, Stacks

#: A thread that runs for less of the time is none that the training waits for.
_MIN_RATIO: Final = 0.1
#: A thread inside of these waits.
_WAITING: Final = frozenset(
    {
        "asyncio",
        "concurrent",
        "multiprocessing",
        "queue",
        "select",
        "selectors",
        "socket",
        "ssl",
        "subprocess",
        "threading",
    }
)
#: The toolkit's own threads begin so.
_OWN_NAMES: Final = ("tlkit", "MainThread")


class Busy(NamedTuple):
    """A thread that has been running."""

    seen: Seen
    thread: str
    """Its name."""
    ran_ns: int
    """On processors, since the look before; at most the time since then."""


class BusyThreads:
    """Looks at all threads of Python's but the training's and the toolkit's."""

    def __init__(self) -> None:
        """Nobody has run yet."""
        self._ran_ns: dict[int, int] = {}
        self._looked_ns = 0

    def look(self, stacks: Stacks, frames: dict[int, FrameType], training: int) -> Busy | None:
        """The busiest thread since the look before; None if none has run for long, or the first time.

        Args:
            stacks: tells whose code a frame is of.
            frames: by thread, as `sys._current_frames` has them.
            training: the identity of the training thread.
        """
        now_ns = time.monotonic_ns()
        since_ns, self._looked_ns = now_ns - self._looked_ns, now_ns
        before, self._ran_ns = self._ran_ns, {}
        most_ns, busiest = int(_MIN_RATIO * since_ns), None
        for thread in threading.enumerate():
            ident = thread.ident
            # One that Python did not start may have ended; of the others none can while this thread has the interpreter's lock.
            is_foreign = isinstance(thread, threading._DummyThread)  # noqa: SLF001  it has no other name
            if ident is None or ident == training or is_foreign or thread.name.startswith(_OWN_NAMES):
                continue
            if ident not in frames:
                continue
            total_ns = time.clock_gettime_ns(time.pthread_getcpuclockid(ident))
            self._ran_ns[ident] = total_ns
            ran_ns = total_ns - before.get(ident, total_ns)
            if ran_ns > most_ns:
                most_ns, busiest = ran_ns, thread
        if busiest is None or busiest.ident is None:
            return None
        seen = stacks.look(frames[busiest.ident])
        return None if seen is None or seen.library in _WAITING else Busy(seen, busiest.name, min(most_ns, since_ns))
