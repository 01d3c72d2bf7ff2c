"""The folder of one run in a collector's store.

It carries a mark: a file that says that a collector made the folder, whose run it holds, and which files in it the collector has
begun.  Only what the mark names is read, grown or removed; a folder without a mark belongs to somebody else.

The first line of the mark describes the run.  Shards that begin later are lists of names in further lines, so that a run of a
thousand ranks does not write what it has a thousand times.  A line that was cut by a crash names shards that never began.
"""

import contextlib
import errno
import json
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

MARK: Final = ".tlkit-run"
MADE_BY: Final = "tlkit.collector"
#: Folders that are being made; what is left of one has at most its mark, whole or begun.
_SCRATCH: Final = ".tlkit-new-"
#: So many shards of a run can grow at the same time.
_LOCKS: Final = 16
_ZEROS_NBYTES: Final = 65536
_MAX_MARK_NBYTES: Final = 4 * 1024 * 1024
_GROWS: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class RunFolder:
    """A folder that a collector made."""

    path: Path
    run_id: str
    """Of the run, as its shards name it; "" as long as none did."""
    shards: dict[str, None]
    """Names of the files that the collector has begun."""
    locks: tuple[threading.Lock, ...] = field(default_factory=lambda: tuple(threading.Lock() for _ in range(_LOCKS)))

    @contextmanager
    def growing(self, shards: Iterable[str]) -> Iterator[None]:
        """Within it nobody else grows these shards."""
        with contextlib.ExitStack() as held:
            for number in sorted(
                {hash(shard) % _LOCKS for shard in shards}
            ):  # always in one order: nobody waits in a circle
                held.enter_context(self.locks[number])
            yield

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

    def name_run(self, run_id: str) -> None:
        """Say which run it is.

        Raises:
            OSError: it cannot be written; everything is as before.
        """
        self._describe(run_id, self.shards)

    def _describe(self, run_id: str, shards: dict[str, None]) -> None:
        _write_mark(self.path, run_id, shards)
        self.run_id, self.shards = run_id, shards

    def begin(self, shards: Iterable[str]) -> None:
        """Say that these shards are the collector's, before they are there.

        Raises:
            OSError: it cannot be written; everything is as before.
        """
        begun = dict.fromkeys(shards)
        descriptor = os.open(self.path / MARK, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # A line of its own, whatever a crash has left before it.
            line = b"\n" + json.dumps(list(begun)).encode()
            if _write_most(descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        self.shards = {**self.shards, **begun}

    def append(
        self, pieces: Mapping[str, tuple[int, bytes]], threads: Executor
    ) -> tuple[dict[str, int], OSError | None]:
        """Write pieces at the ends of shards and wait until the disk has them.

        Args:
            pieces: for each shard the bytes that it has, and those that follow.
            threads: wait for the disk side by side, where many files share what one of them costs.

        Returns:
            Bytes written to each shard, which may be less than all, and what hindered the rest.
        """
        written: dict[str, int] = {}
        opened: dict[str, int] = {}
        trouble: OSError | None = None
        try:
            try:
                for shard, (_, piece) in pieces.items():
                    opened[shard] = os.open(self.path / shard, _GROWS, 0o666)
                    written[shard] = _write_most(opened[shard], piece)
            except OSError as error:
                trouble = error
            descriptors = [opened[shard] for shard in written]
            synced = threads.map(_sync, descriptors) if len(written) > 1 else map(_sync, descriptors)
            for shard, failure in zip(list(written), synced, strict=True):
                if failure is not None:
                    os.ftruncate(opened[shard], pieces[shard][0])  # what the disk may not have is not to count
                    written[shard], trouble = 0, failure
        finally:
            for descriptor in opened.values():
                os.close(descriptor)
        if not all(pieces[shard][0] for shard in opened):
            _sync_folder(self.path)
        return written, trouble

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
            self._describe(self.run_id, {})


def open_run(path: Path) -> RunFolder | None:
    """The run in a folder; None if no collector made it."""
    try:
        if path.is_symlink() or (path / MARK).lstat().st_size > _MAX_MARK_NBYTES:
            return None
        first, *later = (path / MARK).read_bytes().split(b"\n")
        described: Any = json.loads(first)
        if described["made_by"] != MADE_BY:
            return None
        shards = dict.fromkeys(map(str, described["shards"]))
        for line in later:
            with contextlib.suppress(ValueError):  # it was cut
                begun = json.loads(line)
                shards.update(dict.fromkeys(map(str, begun if isinstance(begun, list) else [])))
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
    scratch = path.with_name(_SCRATCH + secrets.token_hex(8))
    scratch.mkdir()
    try:
        _write_mark(scratch, run_id, {})
        scratch.rename(path)
    except OSError:
        _discard(scratch)
        raise
    _sync_folder(path.parent)
    return RunFolder(path, run_id, {})


def discard_unfinished(store: Path) -> None:
    """Remove what a collector that was killed has left of folders that it was making.

    Raises:
        OSError: the store's folder cannot be read, or something in it cannot be removed.
    """
    for child in store.iterdir():
        if child.name.startswith(_SCRATCH) and child.is_dir() and not child.is_symlink():
            names = {inside.name for inside in child.iterdir()}
            if names <= {MARK, f"{MARK}.new"}:  # anything else in it is somebody else's
                _discard(child)


def _discard(scratch: Path) -> None:
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


def _sync(descriptor: int) -> OSError | None:
    """Wait until the disk has a file; what hinders it."""
    try:
        os.fdatasync(descriptor)
    except OSError as error:
        return error
    return None


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
