"""The newest analysis of shards that grow.

Every so often what has been written is read again.  Of shards that have become large only the newest part is: the metadata at the
beginning and as much of the end as a window holds, so that a run of days costs what its last minutes cost.  Where only sums of
steps are recorded, a window of minutes is a few kilobytes, and a job of a thousand ranks is read again every few seconds.
"""

import logging
import re
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ...timeline.errors import TlkitError, TraceNotFoundError
from ...timeline.model.trace import Trace
from ...timeline.read.open import files_of, open_trace
from ...timeline.record.sampled_format import STEPS_EVENT
from ..analysis import Analysis, analyze

#: Bytes of each shard that are looked at.
WINDOW_NBYTES: Final = 24 * 1024 * 1024
#: The same of shards that hold sums of steps only; one event of them has 20 KB at most.
SUMS_WINDOW_NBYTES: Final = 24 * 1024
#: Steps of these that are looked at: of more, a rank that has just become slow is too small a share to be named.
SUMS_STEPS: Final = 120
#: Bytes at the beginning within which the metadata lies.
_HEAD_NBYTES: Final = 256 * 1024
_METADATA: Final = re.compile(rb'"ph": ?"M"')
_SUMS: Final = STEPS_EVENT.encode()
REFRESH_S: Final = 1.0
#: An analysis may take this share of the time, so that it never keeps a core.
_BUSY_SHARE: Final = 0.5

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
    ) -> None:
        """Begin with `start`.

        Args:
            paths: as `open_trace` takes them; nothing needs to be there yet.
            on_new: called with each new analysis, on the follower's thread.
            on_status: called with words that say what is followed.
            window_nbytes: of each shard, so much of its end is looked at.
        """
        self._paths = list(paths)
        self._on_new, self._on_status = on_new, on_status
        self._window_nbytes = window_nbytes
        self._stopping = threading.Event()
        self._seen: dict[Path, int] = {}
        self._only_sums = False
        """Whether no step was recorded in full so far."""
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
            began, used = time.monotonic(), time.process_time()
            try:
                self.look()
            except TraceNotFoundError:
                self._on_status(f"waiting for {', '.join(self._paths)}")
            except TlkitError as error:
                self._on_status(f"waiting: {error}")
            except OSError as error:  # a shard that went away while it was read
                self._on_status(f"waiting: {error}")
            except Exception:  # one look that fails must not be the last
                _log.exception("the newest state of %s could not be analysed", ", ".join(self._paths))
                self._on_status("the newest state could not be analysed; see the log")
            # On a busy machine a look takes longer than it keeps a core.
            took = min(time.monotonic() - began, time.process_time() - used)
            self._stopping.wait(max(REFRESH_S - took, took * (1 / _BUSY_SHARE - 1), 0.05))

    def look(self) -> bool:
        """Analyse what is there, if it has grown; returns whether it had.

        Raises:
            TlkitError: there is nothing to read yet.
        """
        sizes = {path: path.stat().st_size for path in files_of(self._paths)}
        if sizes == self._seen:
            return False
        window = min(self._window_nbytes, SUMS_WINDOW_NBYTES) if self._only_sums else self._window_nbytes
        is_cut = any(size > window + (0 if self._only_sums else _HEAD_NBYTES) for size in sizes.values())
        if is_cut:
            with tempfile.TemporaryDirectory(prefix="tlkit-window-") as folder:
                for path, size in sizes.items():
                    _cut(path, size, Path(folder) / path.name, window)
                # Places of args are forgotten with the folder: what looks them up has to do without.
                trace = open_trace(folder, use_cache=False)
        else:
            trace = open_trace(self._paths, use_cache=False)
        self._only_sums = not trace.meta.knows_order
        steps = _newest(trace) if self._only_sums else None
        analysis = analyze(trace, warm_up=0 if is_cut or steps else None, steps=steps)
        self._seen = sizes
        total = sum(sizes.values())
        last = " (its newest part)" if is_cut or steps else ""
        self._on_status(f"live: {len(sizes)} shards, {total / 1e6:.1f} MB{last}")
        self._on_new(analysis)
        return True


def _newest(trace: Trace) -> tuple[int, int] | None:
    """The newest steps that all ranks have ended, the first and the one after the last; None if there are no more."""
    numbers = trace.steps.groupby("rank")["step"].max()
    last = int(numbers.min()) if len(numbers) else -1
    first = int(trace.steps["step"].min()) if len(numbers) else 0
    return (last + 1 - SUMS_STEPS, last + 1) if last + 1 - first > SUMS_STEPS else None


def _cut(path: Path, size: int, target: Path, window_nbytes: int) -> None:
    """Copy the metadata of a shard and whole lines of its end."""
    with path.open("rb") as file, target.open("wb") as out:
        head = file.read(_HEAD_NBYTES)
        lines = head.split(b"\n")
        metadata = 0
        for line in lines[:-1]:
            if line.strip() not in {b"[", b""} and (_SUMS in line or not _METADATA.search(line)):
                break
            metadata += len(line) + 1
        out.write(head[:metadata])
        begin = max(size - window_nbytes, metadata)
        file.seek(begin)
        if begin > metadata:
            file.readline()
        left = size - file.tell()
        while left > 0:
            block = file.read(min(left, 1 << 20))
            if not block:
                break
            out.write(block)
            left -= len(block)
