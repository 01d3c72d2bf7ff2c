"""The connections that a transport of torch's has made, found by the addresses that the ranks have exchanged; and their end.

torch's Gloo cannot be told to give up: a rank that waits in a collective for one that is stopped waits until Gloo's own timeout,
and so does whoever destroys the process group.  A connection that is shut down below it ends both at once.
"""

import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_DESCRIPTORS: Final = Path("/proc/self/fd")

#: What stands between port and host in an address of IPv6.
_NO_FLOW: Final = bytes(4)


class Connections:
    """What a transport's ranks have told each other about where they listen, and what is connected there."""

    def __init__(self) -> None:
        """Begin with nothing exchanged."""
        self._own: list[bytes] = []
        self._others: list[bytes] = []

    def note_own(self, value: bytes) -> None:
        """This rank has told the others this."""
        self._own.append(value)

    def note_others(self, value: bytes) -> None:
        """Another rank has told this."""
        self._others.append(value)

    def cut(self) -> int:
        """End all connections, whoever uses them; returns how many.  Those that come later have to be cut again."""
        count = 0
        for connection in _open_connections():
            with connection:
                try:
                    mine, theirs = _packed(connection.getsockname()), _packed(connection.getpeername())
                except OSError:  # it listens, which Gloo does not survive the end of, or is closed by now
                    continue
                if _is_among(theirs, self._others) or _is_among(mine, self._own):
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)
                        count += 1
        return count


def _open_connections() -> Iterator[socket.socket]:
    """Copies of this process's sockets of the internet, for the caller to close."""
    for descriptor in _DESCRIPTORS.iterdir():
        with suppress(OSError):  # closed meanwhile
            if not stat.S_ISSOCK(descriptor.stat().st_mode):
                continue
            copy = socket.socket(fileno=os.dup(int(descriptor.name)))
            if copy.family in {socket.AF_INET, socket.AF_INET6} and copy.type == socket.SOCK_STREAM:
                yield copy
            else:
                copy.close()


def _packed(address: tuple[str, int]) -> bytes:
    """An address as it stands in the kernel's structures, which are what Gloo exchanges."""
    host, port = address[0].partition("%")[0], struct.pack("!H", address[1])
    if ":" in host:
        return port + _NO_FLOW + socket.inet_pton(socket.AF_INET6, host)
    return port + socket.inet_pton(socket.AF_INET, host)


def _is_among(address: bytes, values: list[bytes]) -> bool:
    return any(address in value for value in values)
