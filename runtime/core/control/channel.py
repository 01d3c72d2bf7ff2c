"""Messages over a connection: a length and a number of four bytes each, then the message."""

import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import msgspec

from .messages import MAX_MESSAGE_NBYTES, Message, decode, encode

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: How long a message is, and which it is of this connection.  A message that came twice or was lost is noticed, and so are
#: bytes that are taken for the beginning of a message: their length would be waited for in vain.
_HEAD = struct.Struct("!II")
_NUMBERS = 1 << 32
_CHUNK_NBYTES = 1 << 18


class Connection(Protocol):
    """What a channel needs of a socket."""

    @property
    def family(self) -> int:
        """Such as `socket.AF_UNIX`."""

    def fileno(self) -> int:
        """For selectors."""

    def send(self, data: "Buffer", flags: int = 0, /) -> int:
        """Send some bytes, see `socket.send`."""

    def sendall(self, data: "Buffer", /) -> None:
        """Send all bytes."""

    def recv(self, limit: int, /) -> bytes:
        """Receive some bytes, see `socket.recv`."""

    def settimeout(self, timeout_s: float | None, /) -> None:
        """For `sendall` and `recv`."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """See `socket.setsockopt`."""

    def shutdown(self, how: int, /) -> None:
        """See `socket.shutdown`."""

    def close(self) -> None:
        """Let go of it."""


class Channel:
    """One end of a connection.  One thread at a time sends and receives."""

    def __init__(self, connection: Connection) -> None:
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        self._socket = connection
        self._received = bytearray()
        self._kept: list[Message] = []
        self._outgoing: deque[memoryview] = deque()
        self.backlog_nbytes = 0
        """What was posted and has not gone out."""
        self._sent_messages = 0
        self._received_messages = 0

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send one message, and wait until it has gone out.

        Raises:
            OSError: the other side is gone.
        """
        self._socket.sendall(self._framed(encode(message)))

    def post(self, payload: bytes) -> None:
        """Send a message that is encoded already, to send the same message to many ranks; does not block.

        What the other side does not take yet goes out by `flush`.

        Raises:
            OSError: the other side is gone.
        """
        data = self._framed(payload)
        if not self._outgoing:
            sent = self._send_some(data)
            if sent == len(data):
                return
            data = data[sent:]
        self._outgoing.append(memoryview(data))
        self.backlog_nbytes += len(data)

    def flush(self) -> None:
        """Send of what was posted as much as the other side takes.

        Raises:
            OSError: the other side is gone.
        """
        while self._outgoing:
            rest = self._outgoing[0]
            sent = self._send_some(rest)
            self.backlog_nbytes -= sent
            if sent < len(rest):
                self._outgoing[0] = rest[sent:]
                break
            self._outgoing.popleft()

    def _send_some(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def _framed(self, payload: bytes) -> bytes:
        if len(payload) > MAX_MESSAGE_NBYTES:
            raise ValueError(f"a message of {len(payload)} bytes is too long")
        number = self._sent_messages % _NUMBERS
        self._sent_messages += 1
        return _HEAD.pack(len(payload), number) + payload

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
        while len(received) - start >= _HEAD.size:
            length, number = _HEAD.unpack_from(received, start)
            if number != self._received_messages % _NUMBERS:
                raise ValueError(f"message {self._received_messages} is missing, or another came twice")
            if length > MAX_MESSAGE_NBYTES:
                raise ValueError(f"a message of {length} bytes is too long")
            end = start + _HEAD.size + length
            if len(received) < end:
                break
            self._received_messages += 1
            try:
                yield decode(memoryview(received)[start + _HEAD.size : end])
            except msgspec.MsgspecError as error:
                raise ValueError(f"a message cannot be read: {error}") from error
            start = end
        if start:
            del received[:start]

    def drop_backlog(self) -> None:
        """Nobody will take what was posted."""
        self._outgoing.clear()
        self.backlog_nbytes = 0

    def finish(self) -> None:
        """Say that nothing follows.  What was sent arrives, even if the other side has sent something that nobody reads."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection."""
        self.drop_backlog()
        self._socket.close()
