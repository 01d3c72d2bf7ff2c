"""What a collector keeps: the shards of its jobs, byte for byte.

A shard grows at its end only, and every piece says where it belongs: a piece that is there already, or that would leave a gap,
is refused with the size that is there.  So a sender that does not know what has arrived, because the collector or the network
died, asks and goes on from there, and nothing is lost or there twice.  What counts is the file's own size, which survives the
collector.
"""

import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ...timeline.errors import TlkitError, UsageError

#: Names of runs and shards; nothing that a path could make something of.
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,120}")
#: Bytes of one piece.
MOST_PIECE_NBYTES: Final = 8 * 1024 * 1024
#: All runs together; the run that was written to longest ago goes first.
MOST_NBYTES: Final = 20 * 1024**3
MOST_SHARDS: Final = 4096


class RefusedError(TlkitError):
    """A piece that cannot be kept."""


class OffsetError(RefusedError):
    """A piece that does not begin where the shard ends."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the shard has {size} bytes")
        self.size = size


class ShardStore:
    """The shards of several runs in a folder: `<run>/<shard>`.  Safe to use from several threads of one process."""

    def __init__(self, folder: Path, *, most_nbytes: int = MOST_NBYTES) -> None:
        """Open the folder, which is made if it is not there.

        Raises:
            UsageError: it cannot be made or written to.
        """
        self.folder = folder
        self._most_nbytes = most_nbytes
        self._lock = threading.Lock()
        self._since_check = most_nbytes  # looked at before the first piece
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".writable").touch()
        except OSError as error:
            raise UsageError(f"cannot keep anything in {folder}: {error.strerror}") from error

    def runs(self) -> list[str]:
        """The runs that are kept, the one that grew last first."""
        found = [child for child in self.folder.iterdir() if child.is_dir() and _NAME.fullmatch(child.name)]
        return [child.name for child in sorted(found, key=_last_written, reverse=True)]

    def path_of(self, run: str) -> Path:
        """The folder of a run.

        Raises:
            RefusedError: no run can have that name.
        """
        if not _NAME.fullmatch(run):
            raise RefusedError(f"{run[:80]!r} is no name of a run: letters, digits, '.', '_' and '-', at most 121")
        return self.folder / run

    def sizes(self, run: str) -> dict[str, int]:
        """Bytes of each shard of a run; empty for one that is not there."""
        folder = self.path_of(run)
        return {path.name: path.stat().st_size for path in _files(folder)} if folder.is_dir() else {}

    def append(self, run: str, shard: str, offset: int, piece: bytes) -> int:
        """Keep a piece; returns the size of the shard with it.

        Raises:
            OffsetError: the shard does not end where the piece begins.
            RefusedError: a name that is none, or too much.
        """
        folder = self.path_of(run)
        if not _NAME.fullmatch(shard) or not shard.endswith(".json"):
            raise RefusedError(f"{shard[:80]!r} is no name of a shard: it ends in .json")
        if len(piece) > MOST_PIECE_NBYTES:
            raise RefusedError(f"a piece has at most {MOST_PIECE_NBYTES} bytes")
        with self._lock:
            path = folder / shard
            try:
                size = path.stat().st_size
            except FileNotFoundError:
                size = 0
            if offset != size:
                raise OffsetError(size)
            if not size:
                folder.mkdir(exist_ok=True)
                if sum(1 for _ in _files(folder)) >= MOST_SHARDS:
                    raise RefusedError(f"a run has at most {MOST_SHARDS} shards")
            self._make_room(run, len(piece))
            with path.open("ab", buffering=0) as file:
                written = file.write(piece)
        return size + (written or 0)

    def _make_room(self, run: str, nbytes: int) -> None:
        """Forget the oldest runs if all together are too large."""
        self._since_check += nbytes
        if self._since_check < self._most_nbytes // 100:
            return
        self._since_check = 0
        sizes = {name: sum(self.sizes(name).values()) for name in self.runs()}
        total = sum(sizes.values()) + nbytes
        for name in reversed(self.runs()):
            if total <= self._most_nbytes:
                return
            if name != run:
                shutil.rmtree(self.folder / name, ignore_errors=True)
                total -= sizes[name]
        if total > self._most_nbytes:
            raise RefusedError(f"the run would be larger than the {self._most_nbytes} bytes that are kept")


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.suffix == ".json" and path.is_file())


def _last_written(folder: Path) -> float:
    return max((path.stat().st_mtime for path in _files(folder)), default=folder.stat().st_mtime)
