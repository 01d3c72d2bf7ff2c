"""Large runs are read and analysed by another process, of which only what it has kept remains.

A reader makes and drops several times what the columns take in the end, an analysis three times, and the C library gives back to
the system only what no later allocation lies behind: a program that shows a run for hours would hold it for as long.  So a
process of its own keeps the trace and its analysis (timeline/read/cache.py, kept.py), ends, and columns are mapped from there.

What reads and analyses is loaded when it is first asked for: the other process may have begun by then.
"""

import contextlib
import logging
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..timeline.errors import TlkitError

if TYPE_CHECKING:
    from ..timeline.formats import Progress
    from ..timeline.model.trace import Trace
    from .analysis import Analysis

#: Smaller files are read before another process has started, and leave little behind.
MIN_NBYTES: Final = 128 * 1024 * 1024
#: So often it is reported how far the reading has come, and looked whether anybody still waits for it.
_REPORT_S: Final = 0.1
#: Who is no longer waited for may remove what is half written.
_STOP_S: Final = 2.0

Words = list[tuple[str, str]]
"""What is known of a run: names and values."""

_log = logging.getLogger("tlkit.collector")


@dataclass(frozen=True, slots=True)
class _Read:
    """So many bytes of so many have been read."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class _Over:
    """All that can be kept is; or why nothing is."""

    error: TlkitError | None


@dataclass(frozen=True, slots=True)
class _Task:
    """What the other process is to do."""

    source: str | Sequence[str]
    warm_up: int | None
    ranks: Sequence[int] | None
    describe: "Callable[[Trace], Words]"


def _no_words(_trace: "Trace") -> Words:
    return []


def analyze_apart(
    source: str | Sequence[str],
    *,
    warm_up: int | None = None,
    ranks: Sequence[int] | None = None,
    progress: "Progress" = lambda _done, _total: None,
    describe: "Callable[[Trace], Words]" = _no_words,
    on_described: Callable[[Words], None] = lambda _words: None,
    is_new: bool = False,
) -> "Analysis":
    """`analyze_kept`, which has large files that were not read or not analysed before handled by another process.

    Args:
        source: what `open_trace` takes.
        warm_up: leading steps to leave out; None to find out.
        ranks: look at these ranks only.
        progress: see `open_trace`; what it raises ends the other process, too.
        describe: what is to be known of a trace that has been read and is yet to be analysed; a function of a module.
        on_described: called with that.
        is_new: large files that have most likely not been analysed: the other process begins at once.

    Raises:
        TraceError: the trace cannot be read.
        UsageError: `ranks` selects nothing.
    """
    other = _Other(_Task(source, warm_up, ranks, describe), progress, on_described)
    try:
        if is_new:
            other.begin()
        from . import kept  # noqa: PLC0415  it takes as long to load as the other process does to begin

        return kept.analyze_kept(
            source,
            warm_up=warm_up,
            ranks=ranks,
            progress=progress,
            on_trace=lambda trace: on_described(describe(trace)),
            elsewhere=lambda nbytes: nbytes >= MIN_NBYTES and other.finish(),
            analyze_elsewhere=lambda trace: _nbytes(trace) >= MIN_NBYTES and other.finish(),
        )
    finally:
        other.end()


def _nbytes(trace: "Trace") -> int:
    """Of the files of a trace."""
    return sum(Path(name).stat().st_size for name in trace.meta.files)


class _Other:
    """The other process, as this one sees it."""

    def __init__(self, task: _Task, progress: "Progress", on_described: Callable[[Words], None]) -> None:
        """Nothing runs yet."""
        self._task, self._progress, self._on_described = task, progress, on_described
        self._running: tuple[BaseProcess, Connection] | None = None
        self._is_over = False

    def begin(self) -> None:
        """Have it begin, unless it has."""
        if self._running is not None or self._is_over:
            return
        # Not forked: whoever calls this has threads.
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(there, self._task), name="tlkit-reading", daemon=True)
        process.start()
        there.close()
        self._running = process, here

    def finish(self) -> bool:
        """Wait for it; returns whether it has kept what can be kept just now.

        Raises:
            TlkitError: what it has failed with.
        """
        if self._is_over:
            return False
        self.begin()
        assert self._running is not None
        _, here = self._running
        read = _Read(0, 0)
        try:
            while True:
                self._progress(read.done, read.total)
                if not here.poll(_REPORT_S):
                    continue
                message: Any = here.recv()
                if isinstance(message, _Over):
                    break
                if isinstance(message, _Read):
                    read = message
                else:
                    self._on_described(message)
        except (EOFError, OSError):
            # Too little memory for two processes, say: this one tries by itself.
            _log.warning("the process that read the run ended early; the run is read again")
            return False
        finally:
            self.end()
        if message.error is not None:
            raise message.error
        return True

    def end(self) -> None:
        """Nobody waits for it any more."""
        self._is_over = True
        if self._running is not None:
            (process, here), self._running = self._running, None
            here.close()
            _end(process)


def _end(process: BaseProcess) -> None:
    """Stop a process that is no longer waited for; one that is through ends by itself."""
    process.join(_REPORT_S)
    if process.is_alive():
        process.terminate()
        process.join(_STOP_S)
    if process.is_alive():
        process.kill()
        process.join()


def _work(pipe: Connection, task: _Task) -> None:
    """The other process."""
    # A terminal's Ctrl-C reaches both; this one ends when the other has it ended, or is gone, and tidies up then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    from ..timeline.read.open import open_trace  # noqa: PLC0415  see above
    from . import kept  # noqa: PLC0415

    lock = threading.Lock()
    reported_s = 0.0

    def report(done: int, total: int) -> None:
        nonlocal reported_s
        with lock:
            if time.monotonic() - reported_s >= _REPORT_S:
                reported_s = time.monotonic()
                pipe.send(_Read(done, total))

    with contextlib.suppress(OSError):  # nobody is there any more
        try:
            trace = open_trace(task.source, progress=report)
            if kept.can_be_kept(trace):
                kept.analyze_kept(
                    trace,
                    warm_up=task.warm_up,
                    ranks=task.ranks,
                    on_trace=lambda found: pipe.send(task.describe(found)),
                )
            pipe.send(_Over(None))
        except TlkitError as error:
            pipe.send(_Over(error))
