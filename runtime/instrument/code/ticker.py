"""When to look at a thread: now and then, at no regular distance, and where it is rather than where it gives its lock back.

A thread that looks at another needs the interpreter's lock.  Had it to wait for it as any other, it would get it inside of the
operators and waits that give it back, and never in the Python code between them, which it would not see.  So it insists at once:
the other stops wherever it is.  That takes a function in C (native.c); without it nobody looks.
"""

import importlib
import os
import random
from typing import Any, Final, NamedTuple

from .stacks import MAX_DEPTH, Frame

#: Looks come about so often (s) at first, so many of them, and so often after that.
OFTEN_S: Final = 0.04
OFTEN_COUNT: Final = 400
SELDOM_S: Final = 0.25
#: The lock is insisted on after that.
_PATIENCE_US: Final = 5
#: What keeps the lock for long stands for so many looks at most.
_MAX_STANDS_FOR: Final = 250


class Tick(NamedTuple):
    """A moment to look."""

    at_ns: int
    """When it was due, by the recorder's clock."""
    every_ns: int
    """Mean distance of two."""
    stands_for: int
    """As many were due until the lock was there, during which the other thread kept it, inside of one call."""


class Ticker:
    """Moments to look."""

    def __init__(self, *, often_s: float = OFTEN_S, seldom_s: float = SELDOM_S) -> None:
        """None has come yet.

        Args:
            often_s: between two at first.
            seldom_s: and after that.
        """
        self._often_s, self._seldom_s = often_s, seldom_s
        self.count = 0
        """Moments that were used."""
        # Steps as long as the time between two looks would be seen at the same place for ever; the script's dice are its own.
        self._dice = random.Random(os.getpid())  # noqa: S311  no secret

    def wait(self, now_ns: Any) -> Tick:
        """Sleep until the next moment.

        Args:
            now_ns: the recorder's clock, which is CLOCK_MONOTONIC.
        """
        every_ns = int((self._often_s if self.count < OFTEN_COUNT else self._seldom_s) * 1e9)
        at_ns = _compiled.nap(int(every_ns * self._dice.uniform(0.5, 1.5)), _PATIENCE_US)
        waited_ns = now_ns() - at_ns
        return Tick(at_ns, every_ns, min(1 + waited_ns // every_ns, _MAX_STANDS_FOR))


def stack_of(thread: int) -> list[Frame]:
    """Where a thread is, innermost first; empty if there is none of this identity.

    Frames are not kept and walked in Python: their thread may go on meanwhile, and they would lead nowhere.
    """
    found: list[Frame] = _compiled.stack(thread, MAX_DEPTH)
    return found


def can_look() -> bool:
    """Whether the part in C is there."""
    return _compiled is not None


def _load() -> Any:
    """The part in C; None where it was not compiled, or where this Python has not what it needs."""
    try:
        return importlib.import_module("._native", __package__)
    except ImportError:
        return None


_compiled: Final = _load()
if _compiled is not None:
    os.register_at_fork(after_in_child=_compiled.forget_nap)
