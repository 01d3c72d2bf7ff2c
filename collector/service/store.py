"""What a collector keeps: the shards of its jobs, byte for byte.

A shard grows at its end only, and every piece says where it belongs: a piece that is there already, or that would leave a gap,
is refused with the size that is there.  So a sender that does not know what has arrived, because the collector or the network
died, asks and goes on from there, and nothing is lost or there twice.  What counts is the file's own size, which survives the
collector; a size is told only when the disk has the bytes.

Runs that are over make room for new ones.  A run that grows, or whose sender says that it is there, is never removed: a store
that is full of such runs refuses, and its senders wait.
"""

import fcntl
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ...timeline.errors import TlkitError, UsageError
from . import run_folder
from .identity import digest_of, run_id_in, start_of_before
from .run_folder import RunFolder
from .waiting import Waiting

#: Names of runs and shards; nothing that a path could make something of.
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,120}")
#: Bytes of one piece.
MAX_PIECE_NBYTES: Final = 8 * 1024 * 1024
#: All runs together; the run that was written to longest ago goes first.
MAX_NBYTES: Final = 20 * 1024**3
MAX_SHARDS: Final = 4096
MAX_RUNS: Final = 10_000
#: A run that grew, or whose sender was heard of, within this time may still be going on.
LIVE_S: Final = 600.0
#: A collector that has just started gives senders this long to be heard of.
SETTLE_S: Final = 60.0
#: A full store is not looked through more often.
_RESCAN_S: Final = 1.0

_log = logging.getLogger("tlkit.collector")


class RefusedError(TlkitError):
    """A piece that cannot be kept."""


class OffsetError(RefusedError):
    """A piece that does not begin where the shard ends."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the shard has {size} bytes")
        self.size = size


class OtherRunError(RefusedError):
    """A piece of another run than the one that is kept under this name."""


class FullError(RefusedError):
    """There is no room now; there may be later."""


class ShardStore:
    """The shards of several runs in a folder: `<run>/<shard>`.  Safe to use from several threads of one process."""

    def __init__(self, folder: Path, *, most_nbytes: int = MAX_NBYTES, now_s: Callable[[], float] = time.time) -> None:
        """Open the folder, which is made if it is not there.

        Args:
            most_nbytes: of all runs together.
            now_s: the time of day, in seconds.

        Raises:
            UsageError: it cannot be made or written to, or another collector has it.
        """
        self.folder, self.most_nbytes = folder, most_nbytes
        self.waiting = Waiting(now_s)
        self._now_s, self._opened_s = now_s, now_s()
        self._lock = threading.Lock()
        self._runs: dict[str, RunFolder] = {}
        self._heard_s: dict[str, float] = {}
        self._looked_through_s = -_RESCAN_S
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(folder / ".tlkit-store", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise UsageError(f"another collector keeps its runs in {folder}") from error
        except OSError as error:
            raise UsageError(f"cannot keep anything in {folder}: {error.strerror}") from error
        for child in folder.iterdir():
            if child.name.startswith(run_folder.SCRATCH) and run_folder.open_run(child) is not None:
                run_folder.discard(child)
        self.nbytes = sum(sum(run.sizes().values()) for run in self._all().values())
        """Of all runs together."""

    def close(self) -> None:
        """Let another collector have the folder."""
        os.close(self._descriptor)

    def runs(self) -> list[str]:
        """The runs that are kept, the one that grew last first."""
        with self._lock:
            return self._newest_first()

    def path_of(self, run: str) -> Path:
        """The folder of a run.

        Raises:
            RefusedError: no run can have that name.
        """
        if not _NAME.fullmatch(run):
            raise RefusedError(f"{run[:80]!r} is no name of a run: letters, digits, '.', '_' and '-', at most 121")
        return self.folder / run

    def sizes(self, run: str) -> dict[str, int]:
        """Bytes of each shard of a run; empty for one that is not there.

        Raises:
            RefusedError: no run can have that name.
        """
        found = self._find(run)
        return {} if found is None else found.sizes()

    def run_id(self, run: str) -> str:
        """The id that the run's shards name, "" if none is known.

        Raises:
            RefusedError: no run can have that name.
        """
        found = self._find(run)
        return "" if found is None else found.run_id

    def read(self, run: str, shard: str, offset: int, nbytes: int = MAX_PIECE_NBYTES) -> bytes | None:
        """A part of a shard; None if there is no such shard.

        Raises:
            RefusedError: no run can have that name.
        """
        found = self._find(run)
        if found is None or shard not in found.shards:
            return None
        try:
            return found.read(shard, offset, min(nbytes, MAX_PIECE_NBYTES))
        except FileNotFoundError:
            return None

    def hear(self, run: str) -> bool:
        """A run's sender is there, even if it has nothing to send; returns whether the run is known.

        Raises:
            RefusedError: no run can have that name.
        """
        found = self._find(run)
        if found is not None:
            with self._lock:
                self._heard_s[run] = self._now_s()
        return found is not None

    def append(self, run: str, shard: str, offset: int, piece: bytes, *, run_id: str = "", before: str = "") -> int:
        """Keep a piece; returns the size of the shard with it when the disk has it.

        Args:
            run_id: which run it is of, as far as its sender knows.
            before: digest of the bytes before it, up to `identity.BEFORE_NBYTES` of them, "" if the sender does not tell.

        Raises:
            FullError: there is no room for it now.
            OffsetError: the shard does not end where the piece begins.
            OtherRunError: another run has that name, or the shard is another one.
            RefusedError: a name that is none, or too much.
        """
        path = self.path_of(run)
        if not _NAME.fullmatch(shard) or not shard.endswith(".json"):
            raise RefusedError(f"{shard[:80]!r} is no name of a shard: it ends in .json")
        if len(piece) > MAX_PIECE_NBYTES:
            raise RefusedError(f"a piece has at most {MAX_PIECE_NBYTES} bytes")
        try:
            size = self._append(path, shard, offset, piece, _id_of(piece, offset, run_id), before)
        except FullError as error:
            self.waiting.add(run, str(error))
            raise
        except OSError as error:
            reason = f"the collector cannot write to its disk: {error.strerror or error}"
            self.waiting.add(run, reason)
            raise FullError(reason) from error
        self.waiting.remove(run)
        return size

    def _append(self, path: Path, shard: str, offset: int, piece: bytes, run_id: str, before: str) -> int:
        run = self._claim(path, run_id, len(piece))
        with run.lock_of(shard):
            if shard not in run.shards and os.path.lexists(run.path / shard):
                raise OtherRunError(f"there is a file {shard} in {run.path.name} that was not received")
            size = run.size_of(shard)
            if offset != size:
                raise OffsetError(size)
            start = start_of_before(offset)
            if before and offset and digest_of(run.read(shard, start, offset - start)) != before:
                if (cut := run.cut_zeros(shard)) < size:
                    with self._lock:
                        self.nbytes -= size - cut
                    raise OffsetError(cut)
                raise OtherRunError(
                    f"{shard} of the run {path.name} has different content here: it belongs to another run"
                )
            with self._lock:
                self._make_room(path.name, len(piece))
                if shard not in run.shards:
                    self._begin(run, shard)
                self.nbytes += len(piece)
            written = 0
            try:
                written = run.append(shard, size, piece)
            finally:
                with self._lock:
                    self.nbytes -= len(piece) - written
        return size + written

    def _begin(self, run: RunFolder, shard: str) -> None:
        if len(run.shards) >= MAX_SHARDS:
            raise RefusedError(f"a run has at most {MAX_SHARDS} shards")
        run.describe(run.run_id, {**run.shards, shard: None})

    def _claim(self, path: Path, run_id: str, nbytes: int) -> RunFolder:
        """The run of that name, begun if it is not there; from now on it counts as live."""
        with self._lock:
            run = self._known(path.name)
            if run is None:
                if os.path.lexists(path):
                    raise OtherRunError(f"what is called {path.name} at the collector is no run that it received")
                self._make_room(path.name, nbytes, runs=1)
                run = self._runs[path.name] = run_folder.make_run(path, run_id)
            elif run_id and run.run_id and run.run_id != run_id:
                raise OtherRunError(f"the run {path.name} at the collector is another one: {run.run_id}, not {run_id}")
            elif run_id and not run.run_id:
                run.describe(run_id, run.shards)
            self._heard_s[path.name] = self._now_s()
            return run

    def _find(self, run: str) -> RunFolder | None:
        name = self.path_of(run).name
        with self._lock:
            return self._known(name)

    def _known(self, name: str) -> RunFolder | None:
        """A run that is kept, as its mark says; with the lock."""
        path = self.folder / name
        known = self._runs.get(name)
        if known is not None and os.path.lexists(path / run_folder.MARK):
            return known
        found = run_folder.open_run(path)
        if found is None:
            self._runs.pop(name, None)
        else:
            self._runs[name] = found
        return found

    def _all(self) -> dict[str, RunFolder]:
        names = [child.name for child in self.folder.iterdir() if _NAME.fullmatch(child.name)]
        found = {name: self._known(name) for name in names}
        return {name: run for name, run in found.items() if run is not None}

    def _newest_first(self) -> list[str]:
        last = {name: run.last_grown_s() for name, run in self._all().items()}
        return sorted(last, key=lambda name: (last[name], name), reverse=True)

    def _make_room(self, name: str, nbytes: int, runs: int = 0) -> None:
        """Remove the oldest runs that are over if all together are too large, or too many; with the lock.

        Raises:
            FullError: what is left is too much still.
        """

        def is_enough() -> bool:
            return self.nbytes + nbytes <= self.most_nbytes and len(self._runs) + runs <= MAX_RUNS

        if is_enough():
            return
        now_s = self._now_s()
        if now_s - self._looked_through_s >= _RESCAN_S:
            self._looked_through_s = now_s
            kept = self._runs = self._all()
            self.nbytes = sum(sum(run.sizes().values()) for run in kept.values())
            for other in reversed(self._newest_first()):
                if is_enough():
                    break
                if other != name and not self._is_live(other, kept[other]):
                    self._remove(other, kept[other])
        if not is_enough():
            raise FullError(
                f"the collector is full: it keeps {self.nbytes / 1e9:.3g} of {self.most_nbytes / 1e9:.3g} GB (--keep-gb) and "
                f"{len(self._runs)} of {MAX_RUNS} runs, and those that are left have grown in the last {LIVE_S / 60:.0f} minutes"
            )

    def _is_live(self, name: str, run: RunFolder) -> bool:
        now_s = self._now_s()
        heard_s = max(self._heard_s.get(name, 0.0), run.last_grown_s())
        return now_s - self._opened_s < SETTLE_S or now_s - heard_s < LIVE_S

    def _remove(self, name: str, run: RunFolder) -> None:
        freed = sum(run.sizes().values())
        try:
            run.remove()
        except OSError as error:
            _log.warning("the run %s cannot be removed: %s", name, error)
            return
        _log.warning(
            "the run %s, which has been unchanged for the longest time, is removed: %.1f MB", name, freed / 1e6
        )
        self.nbytes -= freed
        self._runs.pop(name, None)
        self._heard_s.pop(name, None)


def _id_of(piece: bytes, offset: int, run_id: str) -> str:
    """The id of the run that a piece is of, "" if neither its sender nor itself tells."""
    named = "" if offset else run_id_in(piece)
    if named and run_id and named != run_id:
        raise OtherRunError(f"it is of the run {named}, not {run_id}")
    return run_id or named
