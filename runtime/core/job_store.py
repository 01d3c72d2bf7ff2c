"""Keys and values that the ranks of a job share, over connections that have proved themselves.

Transports use it to tell each other where they listen.  Rank 0 keeps the values, in a thread of its own; a request is
operation, lengths, key and value, and is answered soon: who waits for a key asks again and again.
"""

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from ...timeline.errors import RuntimeFailure

_REQUEST: Final = struct.Struct("!BII")
_REPLY: Final = struct.Struct("!BI")
_MAX_NBYTES: Final = 64 * 1024 * 1024
#: Rank 0 keeps a request for a missing key so long before it says that it is missing.
_HOLD_S: Final = 0.2
#: Rank 0 answers within this if it lives; a busy host may take its time.
_ANSWER_S: Final = 60.0


class _Ask(IntEnum):
    SET = 1
    GET = 2
    ADD = 3
    CHECK = 4
    DELETE = 5


class JobStore:
    """One rank's view of the store.  Any thread may use it."""

    def __init__(self, connection: socket.socket, server: "_Server | None" = None) -> None:
        """Use a connection to rank 0; rank 0 itself also owns the server."""
        connection.settimeout(_ANSWER_S)
        self._connection = connection
        self._server = server
        self._lock = threading.Lock()
        self.given_up = ""
        """Why waiting for keys has ended; "" while it is possible."""

    @staticmethod
    def serve(connections: Sequence[socket.socket]) -> "JobStore":
        """Rank 0's: keeps the values of all ranks, whose connections these are."""
        own, kept = socket.socketpair()
        return JobStore(own, _Server([kept, *connections]))

    def set(self, key: str, value: bytes | str) -> None:
        """Set a key.

        Raises:
            RuntimeFailure: rank 0 is gone.
        """
        self._ask(_Ask.SET, key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str, timeout_s: float) -> bytes:
        """The value of a key; blocks until it is set.

        Raises:
            TimeoutError: it was not set within `timeout_s`.
            RuntimeFailure: rank 0 is gone, or it was given up.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            if self.given_up:
                raise RuntimeFailure(self.given_up)
            found, value = self._ask(_Ask.GET, key)
            if found:
                return value
            if time.monotonic() > deadline:
                raise TimeoutError(f"no rank has set {key} within {timeout_s:g} s")

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which begins at 0; returns the sum."""
        return int(self._ask(_Ask.ADD, key, str(amount).encode())[1])

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys have been set."""
        return all(self._ask(_Ask.CHECK, key)[0] for key in keys)

    def delete(self, key: str) -> bool:
        """Forget a key; returns whether it was there."""
        return self._ask(_Ask.DELETE, key)[0]

    def _ask(self, what: _Ask, key: str, value: bytes = b"") -> tuple[bool, bytes]:
        name = key.encode()
        try:
            with self._lock:
                self._connection.sendall(_REQUEST.pack(what, len(name), len(value)) + name + value)
                found, nbytes = _REPLY.unpack(_receive(self._connection, _REPLY.size))
                return bool(found), _receive(self._connection, nbytes)
        except OSError as error:
            raise RuntimeFailure(f"rank 0 keeps no keys any more ({error}): look at its output") from error

    def give_up(self, reason: str) -> None:
        """Whoever waits for a key, or for what other ranks were to make of it, waits in vain."""
        self.given_up = self.given_up or reason

    def leave_in_child(self) -> None:
        """In a forked process: hold no connection of the parent's, whose death the others shall see."""
        self._connection.close()
        if self._server is not None:
            self._server.leave_in_child()

    def close(self) -> None:
        """Let go of the connection; on rank 0, end the store."""
        self._connection.close()
        if self._server is not None:
            self._server.close()


def _receive(connection: socket.socket, nbytes: int) -> bytes:
    received = bytearray()
    while len(received) < nbytes:
        data = connection.recv(nbytes - len(received))
        if not data:
            raise ConnectionResetError("the connection was closed")
        received += data
    return bytes(received)


class _Peer:
    """A connection and what has come of its next request."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = bytearray()
        self.wanted: str | None = None
        """The key that it waits for."""
        self.until_s = 0.0

    def requests(self) -> list[tuple[int, str, bytes]]:
        """Take the requests that have come whole.

        Raises:
            ValueError: what comes is none.
        """
        found = []
        while len(self.received) >= _REQUEST.size:
            what, of_key, of_value = _REQUEST.unpack_from(self.received)
            if of_key + of_value > _MAX_NBYTES:
                raise ValueError("no request is so long")
            end = _REQUEST.size + of_key + of_value
            if len(self.received) < end:
                break
            key = self.received[_REQUEST.size : _REQUEST.size + of_key].decode()
            found.append((what, key, bytes(self.received[_REQUEST.size + of_key : end])))
            del self.received[:end]
        return found

    def reply(self, *, found: bool, value: bytes = b"") -> None:
        """Answer the request."""
        self.wanted = None
        with contextlib.suppress(OSError):  # it is gone; the control plane notices
            self.connection.sendall(_REPLY.pack(found, len(value)) + value)


class _Server:
    """Keeps the values."""

    def __init__(self, connections: Sequence[socket.socket]) -> None:
        self._values: dict[str, bytes] = {}
        self._selector = selectors.DefaultSelector()
        self._peers = [_Peer(connection) for connection in connections]
        for peer in self._peers:
            peer.connection.settimeout(_ANSWER_S)
            self._selector.register(peer.connection, selectors.EVENT_READ, peer)
        self._own = self._peers[0]
        self._thread = threading.Thread(target=self._run, name="tlkit-store", daemon=True)
        self._thread.start()

    def leave_in_child(self) -> None:
        """Close this process's copies; the thread is the parent's."""
        for peer in self._peers:
            peer.connection.close()

    def close(self) -> None:
        """Wait for the thread, which ends when rank 0's own connection has."""
        self._thread.join(_ANSWER_S)

    def _run(self) -> None:
        while self._own in self._peers:
            waiting = [peer.until_s for peer in self._peers if peer.wanted is not None]
            timeout_s = max(min(waiting) - time.monotonic(), 0.0) if waiting else None
            for key, _ in self._selector.select(timeout_s):
                self._read(key.data)
            now_s = time.monotonic()
            for peer in self._peers:
                if peer.wanted is not None and peer.until_s <= now_s:
                    peer.reply(found=False)
        for peer in tuple(self._peers):
            self._forget(peer)
        self._selector.close()

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.connection.recv(1 << 16)
            peer.received += data
            requests = peer.requests()
        except (OSError, ValueError):
            data, requests = b"", []
        if not data:
            self._forget(peer)
        for what, key, value in requests:
            self._answer(peer, what, key, value)

    def _forget(self, peer: _Peer) -> None:
        self._selector.unregister(peer.connection)
        self._peers.remove(peer)
        peer.connection.close()

    def _answer(self, peer: _Peer, what: int, key: str, value: bytes) -> None:
        kept = self._values.get(key)
        if what == _Ask.SET:
            self._keep(key, value)
            peer.reply(found=True)
        elif what == _Ask.ADD:
            total = str(int(kept or b"0") + int(value)).encode()
            self._keep(key, total)
            peer.reply(found=True, value=total)
        elif what == _Ask.GET and kept is None:
            peer.wanted, peer.until_s = key, time.monotonic() + _HOLD_S
        elif what == _Ask.DELETE:
            self._values.pop(key, None)
            peer.reply(found=kept is not None)
        else:
            peer.reply(found=kept is not None, value=kept or b"" if what == _Ask.GET else b"")

    def _keep(self, key: str, value: bytes) -> None:
        self._values[key] = value
        for peer in self._peers:
            if peer.wanted == key:
                peer.reply(found=True, value=value)
