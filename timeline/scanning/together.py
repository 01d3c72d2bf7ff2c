"""Work on the columns of a large file on several threads: NumPy releases the interpreter while it computes."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

Made = TypeVar("Made")

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
    with eager_switches():
        return side_by_side(threads, tasks)


def side_by_side(threads: int, tasks: Sequence[Callable[[], Made]]) -> list[Made]:
    """What each task returns; they are begun in this order, by so many threads, of which the caller is one.

    Raises:
        Exception: what the first of the tasks that failed has raised.
    """
    results: dict[int, Made] = {}
    errors: dict[int, BaseException] = {}
    numbers = iter(range(len(tasks)))  # `next` of it is one operation of the interpreter

    def work() -> None:
        # Whatever was begun before one that failed is finished, and no more is begun.
        while not errors and (number := next(numbers, None)) is not None:
            try:
                results[number] = tasks[number]()
            except BaseException as error:  # it is raised where the results are waited for
                errors[number] = error

    helpers = [threading.Thread(target=work, daemon=True) for _ in range(threads - 1)]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[min(errors)]
    return [results[number] for number in range(len(tasks))]


def halves(rows: int) -> tuple[slice, slice]:
    """The first and the second half of columns.

    >>> halves(5)
    (slice(0, 2, None), slice(2, 5, None))
    """
    return slice(0, rows // 2), slice(rows // 2, rows)


@contextmanager
def eager_switches() -> Iterator[None]:
    """Threads take turns sooner; the interval is as it was when the last one who has asked for that is done.

    A shorter one is left alone: whoever has set it for a moment (the sampler of runtime/instrument/code) takes it back.
    """
    with _lock:
        _eager.append(_eager[0] if _eager else sys.getswitchinterval())
        if _eager[0] > _SWITCH_S:
            sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        with _lock:
            before = _eager.pop()
            if not _eager and before > _SWITCH_S:
                sys.setswitchinterval(before)
