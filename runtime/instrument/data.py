"""Data loading: what the training waits for, and what the loader does meanwhile.

Three places of torch's DataLoader are wrapped: the iterator's `__next__` (the wait of the training), the making of a
multi-process iterator (to reach its workers), and the fetchers' `fetch` (a batch being made, in a worker or in the main
process), whose `collate_fn` call divides it into reading and collating.
"""

import logging
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from torch.utils.data import dataloader
from torch.utils.data._utils import fetch as fetchers

from ...timeline.record import recorder
from ...timeline.vocabulary import (
    COLLATE,
    DATA_FETCH,
    DATA_WAIT,
    DATASET,
    EPOCH_START,
    WORKER_START,
    Category,
    LaneKind,
)
from .code import training
from .code.workers import WorkerLooks
from .patching import Patches
from .steps import tracker
from .worker_pipe import FetchTimes, RankEnd, WorkerEnd

_log = logging.getLogger("tlkit.instrument")
_patches = Patches()


class _Process:
    """Which process this is."""

    worker_end: WorkerEnd | None = None
    """Set in a data loader worker: where to send what it did."""


class WorkerStart:
    """Runs first in a worker: makes it tell what it does, then calls the user's own function.

    Picklable, since with `spawn` and `forkserver` it travels to a process that knows nothing of this one.
    """

    def __init__(self, original: Callable[[int], None] | None, connection: Connection, *, is_looked_at: bool) -> None:
        self._original = original
        self._connection = connection
        self._is_looked_at = is_looked_at

    def __call__(self, worker: int) -> None:
        """Start worker number `worker`."""
        try:
            _Process.worker_end = WorkerEnd(self._connection, worker)
            _wrap_fetchers()
            recorder.mark_training_thread()
            recorder.start_nvtx(of_worker=True)
            if self._is_looked_at:
                WorkerLooks(_Process.worker_end, _fetch_recorded.__code__).start()
        except Exception:  # the worker has to work whatever happens to our records
            _log.warning("data loader worker %d is not recorded", worker, exc_info=True)
        if self._original is not None:
            self._original(worker)


def install() -> None:
    """Record data loading of this process and of the workers that it will start."""
    _wrap_next()
    _wrap_worker_start()
    _wrap_epoch_start()
    _wrap_fetchers()


def uninstall() -> None:
    """Put back what was there; workers that run go on telling."""
    _patches.restore()


def _wrap_next() -> None:
    iterator_class: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001  the one place all iterators share
    original = iterator_class.__next__

    def recorded_next(self: Any) -> Any:
        if not recorder.is_on() or not recorder.is_training_thread():
            return original(self)
        tracker.touch()
        opened = recorder.begin(
            Category.DATA,
            DATA_WAIT,
            LaneKind.DATA,
            {"workers": self._num_workers},
            payload=self._num_workers,
        )
        try:
            batch = original(self)
        except StopIteration:
            recorder.discard(opened)
            raise
        except BaseException as error:
            recorder.end(opened, {"error": type(error).__name__})
            raise
        recorder.end(opened)
        return batch

    _patches.replace(iterator_class, "__next__", recorded_next)


def _wrap_worker_start() -> None:
    iterator_class: Any = dataloader._MultiProcessingDataLoaderIter  # noqa: SLF001  it starts the workers
    original = iterator_class.__init__

    def recorded_init(self: Any, loader: Any) -> None:
        if not recorder.is_on() or not recorder.is_training_thread():
            original(self, loader)
            return
        tracker.touch()
        reader, writer = multiprocessing.Pipe(duplex=False)
        users_own = loader.worker_init_fn
        loader.worker_init_fn = WorkerStart(users_own, writer, is_looked_at=training.is_on())
        opened = recorder.begin(
            Category.DATA,
            WORKER_START,
            LaneKind.DATA,
            {"workers": loader.num_workers},
        )
        try:
            original(self, loader)
        finally:
            recorder.end(opened)
            loader.worker_init_fn = users_own
            # Only the workers hold the writing end now: when the last one has gone, the reading end sees it.
            writer.close()
        RankEnd(reader)

    _patches.replace(iterator_class, "__init__", recorded_init)


def _wrap_epoch_start() -> None:
    iterator_class: Any = dataloader._MultiProcessingDataLoaderIter  # noqa: SLF001  its workers may stay
    original = iterator_class._reset  # noqa: SLF001

    def recorded_reset(self: Any, loader: Any, first_iter: bool = False) -> None:  # noqa: FBT001, FBT002  as the loader calls it
        if first_iter or not recorder.is_on() or not recorder.is_training_thread():
            original(self, loader, first_iter)
            return
        tracker.touch()
        with recorder.span(Category.DATA, EPOCH_START, LaneKind.DATA, workers=loader.num_workers):
            original(self, loader, first_iter)

    _patches.replace(iterator_class, "_reset", recorded_reset)


def _wrap_fetchers() -> None:
    for fetcher_class in (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher):  # noqa: SLF001
        fetch = fetcher_class.fetch
        if not hasattr(fetch, "__wrapped__"):  # a forked worker has it from its parent
            _patches.replace(fetcher_class, "fetch", _recording(fetch))


def _recording(original: Callable[..., Any]) -> Callable[..., Any]:
    def recorded_fetch(self: Any, index: Any) -> Any:
        worker_end = _Process.worker_end
        if worker_end is None and (not recorder.is_on() or not recorder.is_training_thread()):
            return original(self, index)
        return _fetch_recorded(self, index, original, worker_end)

    recorded_fetch.__wrapped__ = original  # type: ignore[attr-defined]
    return recorded_fetch


def _fetch_recorded(fetcher: Any, index: Any, original: Callable[..., Any], worker_end: WorkerEnd | None) -> Any:
    """Make a batch; in a worker the spans go through the pipe (and to NVTX), elsewhere to the recorder."""
    collate = fetcher.collate_fn
    collated_ns = [0, 0]
    start_ns = recorder.now_ns()
    if worker_end is not None:
        worker_end.began_ns = start_ns
    number = None if worker_end is None else worker_end.worker
    whole = recorder.begin(Category.DATA, DATA_FETCH, LaneKind.DATA, {"worker": -1}, payload=number)
    part = recorder.begin(Category.DATA, DATASET, LaneKind.DATA)

    def timed_collate(samples: Any) -> Any:
        nonlocal part
        recorder.end(part)
        part = recorder.begin(Category.DATA, COLLATE, LaneKind.DATA)
        collated_ns[0] = recorder.now_ns()
        try:
            return collate(samples)
        finally:
            collated_ns[1] = recorder.now_ns()

    fetcher.collate_fn = timed_collate
    try:
        batch = original(fetcher, index)
    except StopIteration:
        recorder.discard(part)
        recorder.discard(whole)
        raise
    except BaseException as error:
        recorder.end(part)
        recorder.end(whole, {"error": type(error).__name__})
        raise
    finally:
        fetcher.collate_fn = collate
        if worker_end is not None:
            worker_end.began_ns = 0
    recorder.end(part)
    recorder.end(whole)
    if worker_end is not None:
        worker_end.send(FetchTimes(start_ns, recorder.now_ns(), *collated_ns))
    return batch
