"""Work on the columns of a large file on several threads: NumPy releases the interpreter while it computes."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

#: Columns of fewer rows are done before a thread has started.
_MIN_ROWS: Final = 1 << 16


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
    with ThreadPoolExecutor(threads) as pool:
        return [future.result() for future in [pool.submit(task) for task in tasks]]
