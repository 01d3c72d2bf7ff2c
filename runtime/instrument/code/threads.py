"""Which of the other threads of the process computes, and where in the code it is: it may have what the training needs.

A look is a span of its own lane as long as the thread has run since the look before.  Only the busiest thread has one, and
none if it waits by then in a library of Python's; of a wait in C, as time.sleep, nothing tells.
"""

import os
import threading
import time
from typing import Final, NamedTuple

from .stacks import Seen, Stacks
from .ticker import stack_of

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
#: Of a process with more threads some are not looked at: each look has to ask for all of them.
_MAX_THREADS: Final = 32
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
        self._files: dict[int, int] = {}
        """By thread of the system's, open: what it has had of processors."""
        self._looked_ns = 0

    def look(self, stacks: Stacks, training: int) -> Busy | None:
        """The busiest thread since the look before; None if none has run for long, or the first time.

        Args:
            stacks: tells whose code a frame is of.
            training: the identity of the training thread.
        """
        now_ns = time.monotonic_ns()
        since_ns, self._looked_ns = now_ns - self._looked_ns, now_ns
        before, self._ran_ns = self._ran_ns, {}
        most_ns, busiest = int(_MIN_RATIO * since_ns), None
        for thread in threading.enumerate():
            number = thread.native_id
            if number is None or thread.ident == training or thread.name.startswith(_OWN_NAMES):
                continue
            total_ns = self._total_ns(number)
            if total_ns is None:
                continue
            self._ran_ns[number] = total_ns
            ran_ns = total_ns - before.get(number, total_ns)
            if ran_ns > most_ns:
                most_ns, busiest = ran_ns, thread
        for number in self._files.keys() - self._ran_ns.keys():
            os.close(self._files.pop(number))
        if busiest is None or busiest.ident is None:
            return None
        seen = stacks.look(stack_of(busiest.ident))
        return None if seen is None or seen.library in _WAITING else Busy(seen, busiest.name, min(most_ns, since_ns))

    def close(self) -> None:
        """Look no more."""
        while self._files:
            os.close(self._files.popitem()[1])

    def _total_ns(self, number: int) -> int | None:
        """What a thread has had of processors, None if it has ended.

        The kernel's file and not the thread's clock, which may not be asked for of a thread that ends meanwhile.
        """
        try:
            file = self._files.get(number)
            if file is None:
                if len(self._files) >= _MAX_THREADS:
                    return None
                file = self._files[number] = os.open(f"/proc/self/task/{number}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(file, 64, 0).split(b" ", 1)[0])
        except (OSError, ValueError):
            return None
