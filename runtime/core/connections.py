"""Connections between the processes of a job: within a host by a folder that only this user can enter, across hosts by TCP."""

import contextlib
import errno
import fcntl
import hashlib
import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ...timeline.errors import RuntimeFailure
from .door import user_of_peer
from .handshake import NotOfThisJob

#: What a Unix socket's path may take, with room to spare: longer ones go through the descriptor of their folder.
_MAX_PATH_NBYTES: Final = 100
_BACKLOG: Final = 1024
_POLL_S: Final = 0.02


def private_folder() -> Path:
    """A folder that only this user can enter.

    Raises:
        RuntimeFailure: another user has a folder of this name.
    """
    folder = Path(tempfile.gettempdir()) / f"tlkit-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise RuntimeFailure(
            f"{folder} belongs to another user, or others have access to it: remove it, or set TMPDIR to a folder of your own"
        )
    return folder


def socket_path(name: str) -> Path:
    """Where processes of this user meet that know `name`."""
    return private_folder() / hashlib.sha256(name.encode()).hexdigest()[:24]


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """A path of a socket that is short enough for the kernel."""
    if len(os.fsencode(path)) <= _MAX_PATH_NBYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


@contextmanager
def listen_within_host(path: Path, timeout_s: float) -> Iterator[socket.socket]:
    """A socket that listens at `path`, which is gone afterwards.

    Raises:
        RuntimeFailure: another process listens there, and does not stop within `timeout_s`.
    """
    lock = _lock(path.with_suffix(".lock"), timeout_s)
    try:
        _sweep(path.parent)
        path.unlink(missing_ok=True)  # of a process that was killed
        listener = socket.socket(socket.AF_UNIX)
        with listener, _short(path) as short:
            listener.bind(short)
            listener.listen(_BACKLOG)
            yield listener
    finally:
        path.unlink(missing_ok=True)
        path.with_suffix(".lock").unlink(missing_ok=True)
        os.close(lock)


def _sweep(folder: Path) -> None:
    """Remove what processes have left that were killed."""
    for path in folder.glob("*.lock"):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        with contextlib.suppress(OSError):  # somebody has it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.with_suffix("").unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _lock(path: Path, timeout_s: float) -> int:
    """The descriptor of a file that no other process has locked."""
    deadline = time.monotonic() + timeout_s
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except FileNotFoundError:  # who had it has removed it
            pass
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise RuntimeFailure(
                    "another job of yours with the same id is being started on this host: give them different MASTER_PORTs"
                ) from None
            time.sleep(_POLL_S)
        os.close(descriptor)


def connect_within_host(path: Path) -> socket.socket:
    """Connect to the process that listens at `path`.

    Raises:
        OSError: no process listens there.
        NotOfThisJob: it is another user's process.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        with _short(path) as short:
            connection.connect(short)
        if user_of_peer(connection) != os.geteuid():
            raise NotOfThisJob(f"{path} is another user's")
    except BaseException:
        connection.close()
        raise
    return connection


def listen(address: str, port: int = 0) -> socket.socket:
    """A socket that listens at `address` alone, or at all of this host's where it is none of them but a name for it.

    Args:
        port: 0 for any that is free.

    Raises:
        RuntimeFailure: there is no such address, or the port is taken.
    """
    try:
        family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        try:
            return _listen_at(family, place)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
        return _listen_at(family, ("", port))
    except OSError as error:
        raise RuntimeFailure(f"rank 0 cannot listen at {address}:{port}: {error.strerror or error}") from error


def _listen_at(family: int, place: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
