"""What the control plane waits for: the connections, and two alarms of this process.

The thread of the control plane waits for everything; a training that takes over its work waits for the connections and silences
them for the thread meanwhile.  All connections lie behind one descriptor, so that takes one call.
"""

import os
import select
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Final

from .channel import Channel

_READ: Final = select.EPOLLIN
_WRITE: Final = select.EPOLLOUT


class Sources:
    """Connections and alarms.  Alarms may be rung from any thread."""

    def __init__(self, channels: Iterable[Channel]) -> None:
        """Watch `channels`."""
        self._everything, self._connections = select.epoll(), select.epoll()
        self._thread_alarm = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._driver_alarm = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        for channel in channels:
            self._connections.register(channel, _READ)
        self._connections.register(self._driver_alarm, _READ)
        self._everything.register(self._connections, _READ)
        self._everything.register(self._thread_alarm, _READ)
        self._open = True
        # A descriptor's number may be somebody else's once it is closed, so closing and writing exclude each other.
        # A signal handler may ring while the same thread rings.
        self._ringing = threading.RLock()

    def wait(self, timeout_s: float | None) -> None:
        """The thread: sleep until something happens, or for as long as `timeout_s`."""
        for descriptor, _ in self._everything.poll(timeout_s):
            if descriptor == self._thread_alarm:
                os.eventfd_read(self._thread_alarm)

    def ready(self, timeout_s: float | None, spin_ns: int = 0) -> Iterator[tuple[int, bool, bool]]:
        """Wait for connections; yields their descriptors, with whether something has come and whether something can go out.

        Args:
            spin_ns: how long to look again and again before going to sleep.
        """
        ready = self._connections.poll(0) if spin_ns else []
        if spin_ns and not ready:
            give_up_ns = time.monotonic_ns() + spin_ns
            while not ready and time.monotonic_ns() < give_up_ns:
                ready = self._connections.poll(0)
        for descriptor, events in ready or self._connections.poll(timeout_s):
            if descriptor == self._driver_alarm:
                os.eventfd_read(self._driver_alarm)
            else:
                yield descriptor, bool(events & ~_WRITE), bool(events & _WRITE)

    def watch(self, channel: Channel, *, writing: bool) -> None:
        """Whether to wait until something can go out, too."""
        self._connections.modify(channel, _READ | _WRITE if writing else _READ)

    def silence(self) -> None:
        """Do not wake the thread for what comes over the connections."""
        self._everything.modify(self._connections, 0)

    def resume(self) -> None:
        """Wake the thread again for what comes, and for what has come."""
        with self._ringing:
            if self._open:
                self._everything.modify(self._connections, _READ)

    def forget(self, channel: Channel) -> None:
        """Watch this connection no longer."""
        self._connections.unregister(channel)

    def wake_thread(self) -> None:
        """Ring for the thread of the control plane."""
        self._ring(self._thread_alarm)

    def wake_driver(self) -> None:
        """Ring for the training that has taken over."""
        self._ring(self._driver_alarm)

    def _ring(self, alarm: int) -> None:
        with self._ringing:
            if self._open:
                os.eventfd_write(alarm, 1)

    def close(self) -> None:
        """Close all but the connections themselves.  Rings have no effect any more."""
        with self._ringing:
            if not self._open:
                return
            self._open = False
            self._everything.close()
            self._connections.close()
            os.close(self._thread_alarm)
            os.close(self._driver_alarm)

    def close_in_child(self) -> None:
        """Close the copies of a forked process, in which some other thread of its parent may hold the lock for ever."""
        self._ringing = threading.RLock()
        self.close()
