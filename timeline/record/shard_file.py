"""The file that a shard is written to: opened alone, readable by whom the umask says, never something that blocks.

Knows nothing of what is written.
"""

import errno
import fcntl
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..errors import TraceError

_log = logging.getLogger("tlkit.timeline")

#: Characters of a run's id that tell its files from those of others.
_MAX_ID: Final = 8

_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a device"),
)


def shard_path(base: str | Path, rank: int) -> Path:
    """Where rank `rank` writes when the user asked for `base`: rank 0 there, the others beside it.

    >>> shard_path("run/t.json", 2).name
    't.rank2.json'
    """
    path = Path(base)
    return path if rank == 0 else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def restart_path(base: str | Path, restarts: int) -> Path:
    """Where a run writes that has begun anew, so that what was recorded before is kept.

    >>> restart_path("run/t.json", 1).name
    't.restart1.json'
    """
    path = Path(base)
    return path.with_name(f"{path.stem}.restart{restarts}{path.suffix}") if restarts else path


def check_base(base: str | Path) -> None:
    """Refuse a name that no rank can write to, on every rank and not on rank 0 alone, whose file has that very name.

    Raises:
        TraceError: there is something else of that name.
    """
    path = Path(base)
    kind = _other_kind(path)
    if kind:
        raise TraceError(
            f"cannot write the timeline {path}: it is {kind}; set HOROVOD_TIMELINE to a file, as in t.json"
        )


def open_shard(path: Path, rank: int, run_id: str) -> tuple[int, Path]:
    """Open a file to write a shard to, empty.  While it is open, no other process opens it.

    Args:
        path: the name wanted; while another process writes there, one with the run in it is taken, and that is logged.
        rank: of the run, whose other ranks arrive at names that belong to this one.

    Returns:
        The descriptor, and the name taken.

    Raises:
        TraceError: it cannot be opened.
    """
    check_base(path)
    for candidate in _candidates(path, rank, run_id):
        try:
            descriptor = _open(candidate)
        except OSError as error:
            raise TraceError(
                f"cannot write the timeline {candidate}: {error.strerror}; "
                "set HOROVOD_TIMELINE to a file in a folder that exists and is writable"
            ) from error
        if descriptor is None:
            continue
        if candidate != path:
            _log.warning(
                "another process is writing the timeline %s; this one writes %s (give each job a HOROVOD_TIMELINE of its own)",
                path,
                candidate,
            )
        return descriptor, candidate
    raise TraceError(f"cannot write the timeline {path}: another process is writing it; name another file")


def close_shard(descriptor: int) -> None:
    """Close it; processes that were forked meanwhile do not keep it from others."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError as error:
        _log.debug("%s", error)
    os.close(descriptor)


def private_opener(path: str, flags: int) -> int:
    """For `open(…, opener=)`: a new file is as the umask says, and its owner's alone where that would let anybody write."""
    existed = Path(path).exists()
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    if not existed and os.fstat(descriptor).st_mode & stat.S_IWOTH:
        os.fchmod(descriptor, 0o600)
    return descriptor


def _other_kind(path: Path) -> str:
    """What `path` is if it is there and no file; "" otherwise."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return ""
    return next((kind for is_kind, kind in _KINDS if is_kind(mode)), "")


def _candidates(path: Path, rank: int, run_id: str) -> Iterator[Path]:
    """The name, one with the run, one with the process."""
    yield path
    ending = f".rank{rank}" if rank else ""
    stem = path.stem.removesuffix(ending)
    run = "".join(char for char in run_id if char.isalnum())[:_MAX_ID]
    if run:
        yield path.with_name(f"{stem}.run-{run}{ending}{path.suffix}")
    yield path.with_name(f"{stem}.run-{run}-{os.getpid()}{ending}{path.suffix}")


def _open(path: Path) -> int | None:
    """None if another process has it."""
    # Without O_TRUNC, since it may be somebody's; O_NONBLOCK in case that it has just become a FIFO.
    descriptor = private_opener(str(path), os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor  # /dev/null
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            os.close(descriptor)
            return None
        _log.debug("%s cannot be locked: %s", path, error.strerror)  # some network file systems
    try:
        os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
