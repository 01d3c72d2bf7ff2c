"""Messages over a connection: a length of four bytes, then the message."""

import socket
import struct
import threading
import time
from collections.abc import Iterator

import msgspec

from .messages import MAX_MESSAGE_NBYTES, Message, decode, encode

_LENGTH = struct.Struct("!I")
_CHUNK_NBYTES = 1 << 18


class Channel:
    """One end of a connection.  Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        self._socket = connection
        self._received = bytearray()
        self._kept: list[Message] = []
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send one message.

        Raises:
            OSError: the other side is gone.
        """
        self.send_encoded(encode(message))

    def send_encoded(self, payload: bytes) -> None:
        """Send a message that is encoded already, as one does to send the same to many."""
        with self._sending:
            self._socket.sendall(_LENGTH.pack(len(payload)) + payload)

    def receive(self) -> list[Message]:
        """What has arrived: reads once, which blocks only while nothing is there.

        Raises:
            ConnectionError: the other side has closed.
            ValueError: what came is not a message.
        """
        data = self._socket.recv(_CHUNK_NBYTES)
        if not data:
            raise ConnectionResetError("the connection was closed")
        self._received += data
        return list(self._complete())

    def receive_one(self, timeout_s: float) -> Message:
        """Wait for one message, for as long as `timeout_s` at most.  What came along with it is kept.

        Raises:
            OSError: none came in time, or the other side has closed.
            ValueError: what came is not a message.
        """
        deadline = time.monotonic() + timeout_s
        try:
            while not self._kept:
                self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
                self._kept = self.receive()
        finally:
            self._socket.settimeout(None)
        return self._kept.pop(0)

    def put_back(self, messages: list[Message]) -> None:
        """Keep messages that were received one by one before their time, ahead of what is kept already."""
        self._kept[:0] = messages

    def take_kept(self) -> list[Message]:
        """Messages that have arrived already: nothing will be readable on their account."""
        kept, self._kept = self._kept, []
        return kept

    def _complete(self) -> Iterator[Message]:
        start, received = 0, self._received
        while len(received) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(received, start)
            if length > MAX_MESSAGE_NBYTES:
                raise ValueError(f"a message of {length} bytes is refused")
            end = start + _LENGTH.size + length
            if len(received) < end:
                break
            try:
                yield decode(memoryview(received)[start + _LENGTH.size : end])
            except msgspec.MsgspecError as error:
                raise ValueError(f"a message cannot be read: {error}") from error
            start = end
        if start:
            del received[:start]

    def close(self) -> None:
        """Close the connection, after what was sent has gone out."""
        self._socket.close()
