"""Lets processes of the job in: all that knock at once, and none for longer than the others.

A connection that says nothing, or something else, costs a descriptor and a hundred bytes for a few seconds.
"""

import errno
import os
import selectors
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from .handshake import ANSWER_NBYTES, Claim, Proof, examine, greeting

#: How long a connection may take to prove itself.
_PATIENCE_S: Final = 10.0
#: So many may be about it; then the oldest goes.
_MAX_UNPROVED: Final = 512
_SHORT_OF_DESCRIPTORS: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


@dataclass(frozen=True, slots=True)
class Guest:
    """A connection that has proved itself."""

    connection: socket.socket
    claim: Claim


@dataclass(slots=True)
class _Caller:
    """A connection that has not."""

    connection: socket.socket
    proof: Proof
    greeted: bytes
    until_s: float
    received: bytearray = field(default_factory=bytearray)


class Door:
    """Some listening sockets, and who knocks at them.  Used by one thread."""

    def __init__(self, listeners: Sequence[tuple[socket.socket, Proof]]) -> None:
        """Listen.

        Args:
            listeners: each with what callers have to know there; the door closes them.
        """
        self._selector = selectors.DefaultSelector()
        self._listeners = [listener for listener, _ in listeners]
        self._callers: dict[socket.socket, _Caller] = {}
        for listener, proof in listeners:
            listener.settimeout(0)
            self._selector.register(listener, selectors.EVENT_READ, proof)

    def __enter__(self) -> Self:
        """Nothing more to do."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the door."""
        self.close()

    def wait(self, timeout_s: float) -> list[Guest]:
        """The ranks that have been authenticated; returns as soon as there is one, or after `timeout_s`.

        Raises:
            OSError: the door was closed meanwhile.
        """
        deadline = time.monotonic() + timeout_s
        guests: list[Guest] = []
        while not guests:
            now_s = time.monotonic()
            self._give_up(now_s)
            if now_s >= deadline:
                break
            until_s = min([deadline, *(caller.until_s for caller in self._callers.values())])
            for key, _ in self._selector.select(max(until_s - now_s, 0.0)):
                if isinstance(key.data, Proof):
                    self._accept(key.fileobj, key.data)  # type: ignore[arg-type]
                elif key.data.connection in self._callers:
                    guests += self._hear(key.data)
        return guests

    def close(self) -> None:
        """Nobody else comes in; who is in stays."""
        for caller in tuple(self._callers.values()):
            self._drop(caller)
        self._selector.close()
        for listener in self._listeners:
            listener.close()

    def _accept(self, listener: socket.socket, proof: Proof) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in _SHORT_OF_DESCRIPTORS:
                self._make_room()
            return
        try:
            if connection.family == socket.AF_UNIX and user_of_peer(connection) != os.geteuid():
                connection.close()
                return
            connection.settimeout(0)
            greeted = greeting()
            connection.sendall(greeted)  # a new connection has room for it
        except OSError:
            connection.close()
            return
        if len(self._callers) >= _MAX_UNPROVED:
            self._make_room()
        caller = _Caller(connection, proof, greeted, time.monotonic() + _PATIENCE_S)
        self._callers[connection] = caller
        self._selector.register(connection, selectors.EVENT_READ, caller)

    def _hear(self, caller: _Caller) -> list[Guest]:
        try:
            data = caller.connection.recv(ANSWER_NBYTES - len(caller.received))
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        caller.received += data
        if not data:
            self._drop(caller)
            return []
        if len(caller.received) < ANSWER_NBYTES:
            return []
        found = examine(caller.proof, caller.greeted, bytes(caller.received))
        if found is None:
            self._drop(caller)
            return []
        claim, verdict = found
        self._selector.unregister(caller.connection)
        del self._callers[caller.connection]
        try:
            caller.connection.settimeout(None)
            caller.connection.sendall(verdict)
        except OSError:
            caller.connection.close()
            return []
        return [Guest(caller.connection, claim)]

    def _give_up(self, now_s: float) -> None:
        for caller in [caller for caller in self._callers.values() if caller.until_s <= now_s]:
            self._drop(caller)

    def _make_room(self) -> None:
        """Let the one go that has been silent longest."""
        oldest = next(iter(self._callers.values()), None)
        if oldest is not None:
            self._drop(oldest)
        else:
            time.sleep(0.01)  # others in this process hold the descriptors

    def _drop(self, caller: _Caller) -> None:
        self._selector.unregister(caller.connection)
        del self._callers[caller.connection]
        caller.connection.close()


def user_of_peer(connection: socket.socket) -> int:
    """The user id of the process at the other end of a Unix connection, as the kernel knows it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", credentials)[1]
    return user
