"""The folder of one run in a collector's store.

It carries a mark: a file that says that a collector made the folder, whose run it holds, and which files in it the collector has
begun.  Only what the mark names is read, grown or removed; a folder without a mark belongs to somebody else.
"""

import json
import os
import secrets
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

MARK: Final = ".tlkit-run"
MADE_BY: Final = "tlkit.collector"
#: Folders that are being made; what is left of one has a mark and nothing else.
SCRATCH: Final = ".tlkit-new-"
#: So many shards of a run can grow at the same time.
_LOCKS: Final = 16
_ZEROS_NBYTES: Final = 65536
_MAX_MARK_NBYTES: Final = 4 * 1024 * 1024


@dataclass(slots=True)
class RunFolder:
    """A folder that a collector made."""

    path: Path
    run_id: str
    """Of the run, as its shards name it; "" as long as none did."""
    shards: dict[str, None]
    """Names of the files that the collector has begun."""
    locks: tuple[threading.Lock, ...] = field(default_factory=lambda: tuple(threading.Lock() for _ in range(_LOCKS)))

    def lock_of(self, shard: str) -> threading.Lock:
        """Who holds it may grow the shard."""
        return self.locks[hash(shard) % _LOCKS]

    def sizes(self) -> dict[str, int]:
        """Bytes of each shard."""
        return {name: self.size_of(name) for name in list(self.shards)}

    def size_of(self, shard: str) -> int:
        """Bytes of a shard; 0 if it is not there."""
        try:
            return (self.path / shard).lstat().st_size
        except FileNotFoundError:
            return 0

    def last_grown_s(self) -> float:
        """When the newest of its files was written to, seconds of the day's clock."""
        last = 0.0
        for name in (MARK, *self.shards):
            try:
                last = max(last, (self.path / name).lstat().st_mtime)
            except FileNotFoundError:
                continue
        return last

    def describe(self, run_id: str, shards: dict[str, None]) -> None:
        """Change what the mark says.

        Raises:
            OSError: it cannot be written; everything is as before.
        """
        _write_mark(self.path, run_id, shards)
        self.run_id, self.shards = run_id, shards

    def append(self, shard: str, size: int, piece: bytes) -> int:
        """Write a piece at the end and wait until the disk has it; returns the bytes written, which may be less than all.

        Args:
            size: bytes that the shard has.

        Raises:
            OSError: nothing of it could be written.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path / shard, flags, 0o666)
        try:
            written = _write_most(descriptor, piece)
            try:
                os.fdatasync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)  # what the disk may not have is not to count
                raise
        finally:
            os.close(descriptor)
        if not size:
            _sync_folder(self.path)
        return written

    def cut_zeros(self, shard: str) -> int:
        """Cut zero bytes off the end of a shard; returns its size.

        A shard is text.  Where the machine went down before the disk had a piece, some file systems show zeros in its place; that
        piece was never acknowledged, and its sender has it.

        Raises:
            OSError: it cannot be cut.
        """
        with (self.path / shard).open("rb+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            while size:
                start = max(size - _ZEROS_NBYTES, 0)
                text = os.pread(file.fileno(), size - start, start).rstrip(b"\0")
                size = start + len(text)
                if text:
                    break
            file.truncate(size)
        return size

    def read(self, shard: str, offset: int, nbytes: int) -> bytes:
        """A part of a shard.

        Raises:
            OSError: it cannot be read.
        """
        descriptor = os.open(self.path / shard, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, nbytes, offset)
        finally:
            os.close(descriptor)

    def remove(self) -> None:
        """Remove the run, and nothing that the collector has not written.

        Raises:
            OSError: something of it cannot be removed.
        """
        for name in self.shards:
            (self.path / name).unlink(missing_ok=True)
        (self.path / f"{MARK}.new").unlink(missing_ok=True)
        if [child.name for child in self.path.iterdir()] == [MARK]:
            (self.path / MARK).unlink()
            self.path.rmdir()
        else:  # somebody keeps files of his own in it
            self.describe(self.run_id, {})


def open_run(path: Path) -> RunFolder | None:
    """The run in a folder; None if no collector made it."""
    try:
        if path.is_symlink() or (path / MARK).lstat().st_size > _MAX_MARK_NBYTES:
            return None
        described: Any = json.loads((path / MARK).read_bytes())
        if described["made_by"] != MADE_BY:
            return None
        shards = dict.fromkeys(map(str, described["shards"]))
        if any(Path(name).name != name for name in shards):
            return None
        return RunFolder(path, str(described["run_id"]), shards)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def make_run(path: Path, run_id: str) -> RunFolder:
    """A new folder for a run, there with its mark or not at all.

    Raises:
        OSError: it cannot be made.
    """
    scratch = path.with_name(SCRATCH + secrets.token_hex(8))
    scratch.mkdir()
    try:
        _write_mark(scratch, run_id, {})
        scratch.rename(path)
    except OSError:
        discard(scratch)
        raise
    _sync_folder(path.parent)
    return RunFolder(path, run_id, {})


def discard(scratch: Path) -> None:
    """Remove what is left of a folder that was being made."""
    for name in (MARK, f"{MARK}.new"):
        (scratch / name).unlink(missing_ok=True)
    scratch.rmdir()


def _write_mark(folder: Path, run_id: str, shards: dict[str, None]) -> None:
    described = {"made_by": MADE_BY, "run_id": run_id, "shards": list(shards)}
    new = folder / f"{MARK}.new"
    with new.open("w", encoding="utf-8") as file:
        json.dump(described, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(folder / MARK)
    _sync_folder(folder)


def _write_most(descriptor: int, piece: bytes) -> int:
    """Write as much as there is room for."""
    view, written = memoryview(piece), 0
    while written < len(piece):
        try:
            written += os.write(descriptor, view[written:])
        except OSError:
            if not written:
                raise
            break
    return written


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
