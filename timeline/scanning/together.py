"""Work on the columns of a large file on several threads: NumPy releases the interpreter while it computes."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

#: Columns of fewer rows are done before a thread has started.
_MIN_ROWS: Final = 1 << 16
#: A thread that comes back from NumPy waits so long for one that runs Python, instead of 5 ms, which is longer than most of what
#: is done here.
_SWITCH_S: Final = 0.0002

_lock = threading.Lock()
_eager: list[float] = []
"""What the interval was before, once for each that has asked for a shorter one."""


def together(rows: int, *tasks: Callable[[], Any]) -> list[Any]:
    """What each task returns; they must not depend on each other.

    Args:
        rows: how long the columns are that they work on.
        tasks: those that take longest first.

    Raises:
        Exception: what the first of the tasks that failed has raised.

    >>> together(3, lambda: 1, lambda: 2)
    [1, 2]
    """
    threads = min(len(tasks), len(os.sched_getaffinity(0)))
    if threads < 2 or rows < _MIN_ROWS:  # noqa: PLR2004  nobody to share with
        return [task() for task in tasks]
    with eager_switches(), ThreadPoolExecutor(threads) as pool:
        return [future.result() for future in [pool.submit(task) for task in tasks]]


@contextmanager
def eager_switches() -> Iterator[None]:
    """Threads take turns sooner; the interval is as it was when the last one who has asked for that is done."""
    with _lock:
        _eager.append(_eager[0] if _eager else sys.getswitchinterval())
        sys.setswitchinterval(min(_SWITCH_S, _eager[0]))
    try:
        yield
    finally:
        with _lock:
            before = _eager.pop()
            if not _eager:
                sys.setswitchinterval(before)
