"""Connections between simulated ranks: in order within one, late as the seed says, cut, filled up, and with messages that come twice."""

import itertools
import random
import socket
from collections import deque
from collections.abc import Callable

Schedule = Callable[[int, Callable[[], None]], None]
"""Calls something after so many nanoseconds."""


class SimulatedSocket:
    """One end of a connection (see `Connection` of the control plane)."""

    family = socket.AF_UNIX
    _numbers = itertools.count(1000)

    def __init__(self, chance: random.Random, schedule: Schedule, now_ns: Callable[[], int]) -> None:
        """Make an end without another; see `connect`."""
        self._number = next(self._numbers)
        self._chance = chance
        self._schedule = schedule
        self._now_ns = now_ns
        self._inbox: deque[bytes] = deque()
        self._under_way_nbytes = 0
        self._last_arrival_ns = 0
        self._ended = False
        self._broken = False
        self._closed = False
        self.window_nbytes = 1 << 16
        """What a connection holds before it takes no more."""
        self.peer: SimulatedSocket | None = None
        self.slowness_ns = 200_000
        """Messages take up to about this long."""
        self.repeats_next = False
        """Whether the next thing that is sent comes twice."""
        self.on_readable: Callable[[], None] = lambda: None
        self.on_writable: Callable[[], None] = lambda: None

    @property
    def is_readable(self) -> bool:
        """Whether `recv` has something to say."""
        return bool(self._inbox) or self._ended or self._broken

    @property
    def is_writable(self) -> bool:
        """Whether `send` takes something."""
        return self._under_way_nbytes < self.window_nbytes or self._broken

    def fileno(self) -> int:
        """A number of its own."""
        return self._number

    def settimeout(self, timeout_s: float | None, /) -> None:
        """Nobody waits here."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """Nothing to set."""

    def send(self, data: bytes | memoryview, flags: int = 0, /) -> int:
        """Take what there is room for."""
        del flags
        if self._broken or self._closed or self.peer is None:
            raise BrokenPipeError("the other side is gone")
        room = self.window_nbytes - self._under_way_nbytes
        if room <= 0:
            raise BlockingIOError
        piece = bytes(data[:room])
        self._under_way_nbytes += len(piece)
        self._deliver(piece)
        if self.repeats_next:
            self.repeats_next = False
            self._under_way_nbytes += len(piece)
            self._deliver(piece)
        return len(piece)

    def sendall(self, data: bytes | memoryview, /) -> None:
        """Only `send` is used once ranks have met."""
        raise NotImplementedError

    def recv(self, limit: int, /) -> bytes:
        """What has come, as far as it is one piece."""
        del limit
        if self._inbox:
            piece = self._inbox.popleft()
            peer = self.peer
            if peer is not None:
                was_full = not peer.is_writable
                peer._under_way_nbytes -= len(piece)
                if was_full and peer.is_writable:
                    peer.on_writable()
            return piece
        if self._broken:
            raise ConnectionResetError("the connection was reset")
        if self._ended:
            return b""
        raise BlockingIOError

    def shutdown(self, how: int, /) -> None:
        """Nothing follows."""
        del how
        self._later(self._end_peer)

    def close(self) -> None:
        """Let go; what nobody has read breaks the other side, as TCP does."""
        if not self._closed:
            self._closed = True
            self._later(self._break_peer if self._inbox else self._end_peer)

    def discard(self) -> None:
        """Read what nobody cares for."""
        self._inbox.clear()

    def cut(self) -> None:
        """The network between the two is gone, and both hear of it."""
        for end in (self, self.peer):
            if end is not None:
                end._broken = True
                end.on_readable()

    def _deliver(self, piece: bytes) -> None:
        def arrive() -> None:
            peer = self.peer
            if peer is not None and not peer._broken and not peer._closed:
                peer._inbox.append(piece)
                peer.on_readable()

        self._later(arrive)

    def _later(self, action: Callable[[], None]) -> None:
        """After what was sent before."""
        delay_ns = int(self._chance.random() ** 3 * self.slowness_ns) + 1000
        self._last_arrival_ns = max(self._last_arrival_ns + 1, self._now_ns() + delay_ns)
        self._schedule(self._last_arrival_ns - self._now_ns(), action)

    def _end_peer(self) -> None:
        if self.peer is not None:
            self.peer._ended = True
            self.peer.on_readable()

    def _break_peer(self) -> None:
        if self.peer is not None:
            self.peer._broken = True
            self.peer.on_readable()


def connect(seed: str, schedule: Schedule, now_ns: Callable[[], int]) -> tuple[SimulatedSocket, SimulatedSocket]:
    """Two ends.  Each has chances of its own, so that what one does not send changes nothing elsewhere."""
    one = SimulatedSocket(random.Random(f"{seed} up"), schedule, now_ns)
    other = SimulatedSocket(random.Random(f"{seed} down"), schedule, now_ns)
    one.peer, other.peer = other, one
    return one, other
