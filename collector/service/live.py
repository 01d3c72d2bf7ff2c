"""The newest analysis of shards that grow.

Every so often what has been written is read again.  Of shards that have become large only the newest part is: the metadata at the
beginning and as much of the end as a window holds, so that a run of days costs what its last minutes cost.  Where only sums of
steps are recorded, only what has come is read (growing_sums.py), and a job of a thousand ranks is analysed every few seconds.
"""

import logging
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ...timeline.errors import TlkitError, TraceNotFoundError
from ...timeline.model.trace import Trace
from ...timeline.read.open import files_of, open_trace
from ..analysis import Analysis, analyze
from .growing_sums import GrowingSums
from .window import HEAD_NBYTES, copy_window

#: Bytes of each shard that are looked at.
WINDOW_NBYTES: Final = 24 * 1024 * 1024
#: Steps that are looked at of shards that hold sums of steps only.  A rank is named when what it costs is a share of them that is
#: worth a word: one that works half as long again after a fifth of these.
SUMS_STEPS: Final = 60
REFRESH_S: Final = 1.0
#: An analysis may take this share of the time, so that it never keeps a core.
_BUSY_SHARE: Final = 0.5
#: Which of so many shards there are is looked at for at most this share of the time.
_MANY: Final = 100
_LISTING_SHARE: Final = 0.1

_log = logging.getLogger("tlkit.collector")


class Follower:
    """Analyses shards again whenever they have grown."""

    def __init__(
        self,
        paths: Sequence[str],
        on_new: Callable[[Analysis], None],
        on_status: Callable[[str], None] = lambda _: None,
        *,
        window_nbytes: int = WINDOW_NBYTES,
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Begin with `start`.

        Args:
            paths: as `open_trace` takes them; nothing needs to be there yet.
            on_new: called with each new analysis, on the follower's thread.
            on_status: called with words that say what is followed.
            window_nbytes: of each shard, so much of its end is looked at.
            names: what to call paths in these words, where it is something else.
        """
        self._names = [names.get(path, path) for path in paths]
        self._paths = list(paths)
        self._on_new, self._on_status = on_new, on_status
        self._window_nbytes = window_nbytes
        self._stopping = threading.Event()
        self._seen: dict[Path, int] = {}
        self._listed: list[Path] = []
        self._list_again_s = 0.0
        self._only_sums = False
        """Whether no step was recorded in full so far."""
        self._sums = GrowingSums(SUMS_STEPS)
        self._thread = threading.Thread(target=self._run, name="tlkit-follower", daemon=True)

    def start(self) -> None:
        """Follow from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after what is under way."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            began, used, ran = time.monotonic(), time.process_time(), time.thread_time()
            try:
                self.look()
            except TraceNotFoundError:
                self._on_status(f"waiting for {', '.join(self._names)}")
            except TlkitError as error:
                self._on_status(f"waiting: {error}")
            except OSError as error:  # a shard that went away while it was read
                self._on_status(f"waiting: {error}")
            except Exception:  # one look that fails must not be the last
                _log.exception("the newest state of %s could not be analysed", ", ".join(self._paths))
                self._on_status("the newest state could not be analysed; see the log")
            # Sums are read on this thread alone: what a thousand senders have the others do meanwhile is no reason to wait.
            kept_s = time.thread_time() - ran if self._only_sums else time.process_time() - used
            # On a busy machine a look takes longer than it keeps a core.
            took = min(time.monotonic() - began, kept_s)
            self._stopping.wait(max(REFRESH_S - took, took * (1 / _BUSY_SHARE - 1), 0.05))

    def _files(self) -> list[Path]:
        """The shards, as they were found a moment ago if there are many."""
        began_s = time.monotonic()
        if len(self._listed) < _MANY or began_s >= self._list_again_s:
            self._listed = files_of(self._paths)
            now_s = time.monotonic()
            self._list_again_s = now_s + (now_s - began_s) * (1 / _LISTING_SHARE - 1)
        return self._listed

    def look(self) -> bool:
        """Analyse what is there, if it has grown; returns whether it had.

        Raises:
            TlkitError: there is nothing to read yet.
        """
        try:
            sizes = {path: path.stat().st_size for path in self._files()}
        except OSError:
            self._listed = []
            raise
        if sizes == self._seen:
            return False
        trace, is_cut = self._read(sizes)
        self._only_sums = not trace.meta.knows_order
        if not self._only_sums:
            self._sums = GrowingSums(SUMS_STEPS)
        steps = _newest(trace) if self._only_sums else None
        analysis = analyze(trace, warm_up=0 if is_cut or steps else None, steps=steps)
        self._seen = sizes
        total = sum(sizes.values())
        last = " (its newest part)" if is_cut or steps else ""
        self._on_status(f"live: {len(sizes)} shards, {total / 1e6:.1f} MB{last}")
        self._on_new(analysis)
        return True

    def _read(self, sizes: Mapping[Path, int]) -> tuple[Trace, bool]:
        """What is looked at of these shards, and whether that is not all of them."""
        if self._only_sums and (trace := self._sums.read(sizes)) is not None:
            return trace, self._sums.is_cut
        is_cut = any(size > self._window_nbytes + HEAD_NBYTES for size in sizes.values())
        if is_cut:
            with tempfile.TemporaryDirectory(prefix="tlkit-window-") as folder:
                parts = [Path(folder) / path.name for path in sizes]
                for (path, size), part in zip(sizes.items(), parts, strict=True):
                    copy_window(path, size, part, self._window_nbytes)
                # Places of args are forgotten with the folder: what looks them up has to do without.
                trace = open_trace(parts, use_cache=False, siblings=False)
        else:
            trace = open_trace(list(sizes), use_cache=False, siblings=False)
        return trace, is_cut


def _newest(trace: Trace) -> tuple[int, int] | None:
    """The newest steps that all ranks have ended, the first and the one after the last; None if there are no more."""
    numbers = trace.steps.groupby("rank")["step"].max()
    last = int(numbers.min()) if len(numbers) else -1
    first = int(trace.steps["step"].min()) if len(numbers) else 0
    return (last + 1 - SUMS_STEPS, last + 1) if last + 1 - first > SUMS_STEPS else None
