"""The same work on every file of a trace: here, on several processes, or on a Dask cluster.

What is done to a file must need nothing but the file's name, and give something small.
"""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from typing import Any, Final, TypeVar

from ..errors import TlkitError, UsageError

Result = TypeVar("Result")
Progress = Callable[[int, int], None]

_GROUPS_A_THREAD: Final = 4
_MAX_GROUP: Final = 16


def map_files(
    function: Callable[[str], Result],
    files: Sequence[str],
    *,
    scheduler: str | None = None,
    workers: int | None = None,
    progress: Progress = lambda _done, _total: None,
) -> list[Result]:
    """`function` of every file, in the order of the files.

    Args:
        function: a function of a module, which processes elsewhere can import.
        files: names that mean the same wherever the work is done.
        scheduler: address of a Dask scheduler, as `tcp://host:8786`; without one, processes on this machine.
        workers: how many processes on this machine; as many as cores by default.
        progress: called with the files that are done and how many there are.

    Raises:
        UsageError: the scheduler cannot be reached, or `distributed` is not installed.
        TlkitError: what `function` raises.
    """
    if scheduler is not None:
        return _on_cluster(function, files, scheduler, progress)
    cores = len(os.sched_getaffinity(0))
    count = min(workers or cores, len(files))
    if count <= 1:
        results = []
        for number, file in enumerate(files):
            results.append(function(file))
            progress(number + 1, len(files))
        return results
    # Not forked: the caller may have threads.
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(function, file) for file in files]
        for done, _ in enumerate(as_completed(futures)):
            progress(done + 1, len(files))
        return [future.result() for future in futures]


def _groups(files: Sequence[str], threads: int) -> list[Sequence[str]]:
    """The files in groups that are a task each: what a task costs the scheduler and the worker is paid once for a group.

    There are several groups for each thread, so that none has much to do when all others have ended.

    >>> _groups(["a", "b", "c"], 2)
    [['a'], ['b'], ['c']]
    >>> [len(group) for group in _groups(["a"] * 40, 2)]
    [5, 5, 5, 5, 5, 5, 5, 5]
    """
    size = max(1, min(len(files) // (_GROUPS_A_THREAD * max(threads, 1)), _MAX_GROUP))
    return [files[first : first + size] for first in range(0, len(files), size)]


def _of_each(function: Callable[[str], Result], files: Sequence[str]) -> list[Result]:
    return [function(file) for file in files]


def _on_cluster(
    function: Callable[[str], Result], files: Sequence[str], scheduler: str, progress: Progress
) -> list[Result]:
    try:
        import distributed  # noqa: PLC0415  an option
    except ImportError:
        raise UsageError("--scheduler needs Dask: pip install 'tlkit[dask]', here and on the workers") from None
    dask: Any = distributed
    try:
        client = dask.Client(scheduler, timeout="10s", set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise UsageError(f"no Dask scheduler answers at {scheduler}: {error}") from error
    with client, client.as_current():
        try:
            groups = _groups(files, sum(client.nthreads().values()))
            futures = client.map(partial(_of_each, function), groups, pure=False)
            size_of = {future.key: len(group) for future, group in zip(futures, groups, strict=True)}
            done = 0
            for future in dask.as_completed(futures):
                done += size_of[future.key]
                progress(done, len(files))
            results: list[Result] = [result for group in client.gather(futures) for result in group]
        except TlkitError:
            raise
        except Exception as error:  # of Dask, or of the workers' machines
            raise TlkitError(f"the cluster at {scheduler} failed: {str(error).splitlines()[0]}") from error
    return results
