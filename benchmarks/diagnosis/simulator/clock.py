"""A discrete-event clock, and processes that wait on it.

A process is a generator.  It yields a moment (ns) to sleep until, or a `Signal` to wait for; moments in the past and signals that
were given already do not stop it.
"""

import heapq
from collections.abc import Callable, Generator
from typing import Any

Process = Generator["int | Signal", None, None]


class Signal:
    """Something that happens once; processes wait for it."""

    __slots__ = ("given", "waiting")

    def __init__(self) -> None:
        self.given = False
        self.waiting: list[Process] = []


class Clock:
    """Simulated time in ns.  What is due at the same moment happens in the order in which it was scheduled."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._due: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._scheduled = 0

    def call_at(self, at_ns: int, function: Callable[..., None], *args: Any) -> None:
        """Call `function` at a moment, or now if that has passed."""
        self._scheduled += 1
        heapq.heappush(self._due, (max(at_ns, self.now_ns), self._scheduled, function, args))

    def start(self, process: Process) -> None:
        """Run a process from now on, until it waits."""
        for wish in process:
            if isinstance(wish, Signal):
                if not wish.given:
                    wish.waiting.append(process)
                    return
            elif wish > self.now_ns:
                self.call_at(wish, self.start, process)
                return

    def give(self, signal: Signal) -> None:
        """The signal happens now: whoever waits goes on."""
        signal.given = True
        waiting, signal.waiting = signal.waiting, []
        for process in waiting:
            self.call_at(self.now_ns, self.start, process)

    def run(self) -> None:
        """Until nothing is due any more."""
        due = self._due
        while due:
            self.now_ns, _, function, args = heapq.heappop(due)
            function(*args)
