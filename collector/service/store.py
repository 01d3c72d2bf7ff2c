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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from ...timeline.errors import TlkitError, UsageError
from . import run_folder
from .identity import digest_of, run_id_in, start_of_before
from .pieces import Piece
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
#: Files that are waited for at the same time: a file system writes its journal once for all of them.
_DISK_THREADS: Final = 8

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
        self._disk = ThreadPoolExecutor(_DISK_THREADS, thread_name_prefix="tlkit-disk")
        self._runs: dict[str, RunFolder] = {}
        self._heard_s: dict[str, float] = {}
        self._looked_through_s = -_RESCAN_S
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(folder / ".tlkit-store", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            run_folder.discard_unfinished(folder)
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise UsageError(f"another collector keeps its runs in {folder}") from error
        except OSError as error:
            raise UsageError(f"cannot keep anything in {folder}: {error.strerror}") from error
        self.nbytes = sum(sum(run.sizes().values()) for run in self._all().values())
        """Of all runs together."""

    def close(self) -> None:
        """Let another collector have the folder."""
        self._disk.shutdown()
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
        (outcome,) = self._append(run, [Piece(shard, offset, before, piece)], run_id)
        if isinstance(outcome, OffsetError):
            raise outcome
        return outcome

    def append_many(self, run: str, pieces: Iterable[Piece], *, run_id: str = "") -> dict[str, int]:
        """Keep pieces of several shards; returns the size of each when the disk has it, also of those whose piece does not fit.

        Raises:
            FullError: there is no room for all of them now; some may be kept.
            OtherRunError: as for `append`; pieces before it may be kept.
            RefusedError: as for `append`; likewise.
        """
        sizes: dict[str, int] = {}
        for together in _apart(pieces):
            for piece, outcome in zip(together, self._append(run, together, run_id), strict=True):
                sizes[piece.shard] = outcome.size if isinstance(outcome, OffsetError) else outcome
        return sizes

    def _append(self, run: str, pieces: Sequence[Piece], run_id: str) -> list[int | OffsetError]:
        """Keep pieces of different shards; returns the size of each, or why it does not fit."""
        path = self.path_of(run)
        for piece in pieces:
            if not _NAME.fullmatch(piece.shard) or not piece.shard.endswith(".json"):
                raise RefusedError(f"{piece.shard[:80]!r} is no name of a shard: it ends in .json")
            if len(piece.content) > MAX_PIECE_NBYTES:
                raise RefusedError(f"a piece has at most {MAX_PIECE_NBYTES} bytes")
            run_id = _id_of(piece, run_id)
        try:
            found = self._claim(path, run_id, sum(len(piece.content) for piece in pieces))
            with found.growing(piece.shard for piece in pieces):
                sizes = self._grow(found, pieces)
        except FullError as error:
            self.waiting.add(run, str(error))
            raise
        except OSError as error:
            reason = f"the collector cannot write to its disk: {error.strerror or error}"
            self.waiting.add(run, reason)
            raise FullError(reason) from error
        self.waiting.remove(run)
        return sizes

    def _grow(self, run: RunFolder, pieces: Sequence[Piece]) -> list[int | OffsetError]:
        """Write what fits, all of it before the first is waited for; nobody else grows these shards.

        Raises:
            OSError: not all of it could be written.
        """
        outcomes = [self._fit(run, piece) for piece in pieces]
        fitting = {
            piece.shard: (size, piece.content)
            for piece, size in zip(pieces, outcomes, strict=True)
            if not isinstance(size, OffsetError)
        }
        nbytes = sum(len(content) for _, content in fitting.values())
        with self._lock:
            self._make_room(run.path.name, nbytes)
            begun = [shard for shard in fitting if shard not in run.shards]
            if len(run.shards) + len(begun) > MAX_SHARDS:
                raise RefusedError(f"a run has at most {MAX_SHARDS} shards")
            if begun:
                run.begin(begun)
            self.nbytes += nbytes
        written: dict[str, int] = {}
        try:
            written, trouble = run.append(fitting, self._disk)
        finally:
            with self._lock:
                self.nbytes -= nbytes - sum(written.values())
        if trouble is not None and (len(pieces) > 1 or not any(written.values())):
            raise trouble
        return [
            size if isinstance(size, OffsetError) else size + written[piece.shard]
            for piece, size in zip(pieces, outcomes, strict=True)
        ]

    def _fit(self, run: RunFolder, piece: Piece) -> int | OffsetError:
        """The size that a shard has, where the piece goes on; else why it does not."""
        shard, offset = piece.shard, piece.offset
        if shard not in run.shards and os.path.lexists(run.path / shard):
            raise OtherRunError(f"there is a file {shard} in {run.path.name} that was not received")
        size = run.size_of(shard)
        if offset != size:
            return OffsetError(size)
        start = start_of_before(offset)
        if piece.before and offset and digest_of(run.read(shard, start, offset - start)) != piece.before:
            if (cut := run.cut_zeros(shard)) < size:
                with self._lock:
                    self.nbytes -= size - cut
                return OffsetError(cut)
            raise OtherRunError(
                f"{shard} of the run {run.path.name} has different content here: it belongs to another run"
            )
        return size

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
                run.name_run(run_id)
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


def _id_of(piece: Piece, run_id: str) -> str:
    """The id of the run that a piece is of, "" if neither its sender nor itself tells."""
    named = "" if piece.offset else run_id_in(piece.content)
    if named and run_id and named != run_id:
        raise OtherRunError(f"it is of the run {named}, not {run_id}")
    return run_id or named


def _apart(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Pieces in their order, in groups in which no shard is twice."""
    together: dict[str, Piece] = {}
    for piece in pieces:
        if piece.shard in together:
            yield list(together.values())
            together = {}
        together[piece.shard] = piece
    if together:
        yield list(together.values())
