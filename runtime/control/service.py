"""The control thread: carries messages between this rank, the coordinator and the executor.

It sleeps in `select` until there is something to do.  When a tensor is submitted it waits for the cycle time, so that what is
submitted together is negotiated together, unless the training already blocks: then waiting could gain nothing.  On rank
0 the thread also serves the coordinator, which holds work back while enough of it is queued: what becomes ready meanwhile
is fused into the next batch.
"""

import logging
import os
import selectors
import threading
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from ...timeline import recorder
from ...timeline.vocabulary import CYCLE_START
from ..config import Config
from ..executor import Executor
from ..work import Completions, Entry
from .channel import Channel
from .clock_sync import offset_of
from .coordinator import Coordinator
from .member import Member
from .messages import (
    Abort,
    ClockOffset,
    ClockPing,
    ClockPong,
    Drained,
    Failed,
    Goodbye,
    Message,
    Ready,
    Resend,
    Work,
    encode,
)
from .stalls import report_stalls

_log = logging.getLogger("tlkit.runtime")

#: Batches that may be under way or queued before the coordinator holds further ones back.
MOST_QUEUED: Final = 2

CLOCK_INTERVAL_S: Final = 60.0


class ControlThread:
    """The control plane of one rank."""

    def __init__(
        self,
        *,
        rank: int,
        hosts: tuple[str, ...],
        channels: Mapping[int, Channel],
        coordinator: Coordinator | None,
        executor: Executor,
        completions: Completions,
        config: Config,
        follow_clock: bool,
    ) -> None:
        """Join the parts.

        Args:
            channels: by rank; on rank 0 one to every other rank, elsewhere one to rank 0.
            coordinator: on rank 0 only.
            follow_clock: whether this rank's clock has to be compared with rank 0's now and then.
        """
        self.member = Member()
        self._rank = rank
        self._hosts = hosts
        self._channels = dict(channels)
        self._coordinator = coordinator
        self._executor = executor
        self._completions = completions
        self._config = config
        self._offsets_ns = dict.fromkeys(range(len(hosts)), 0)
        self._follow_clock = follow_clock
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._waking = threading.Lock()
        self._notified = False
        self._flush = False
        self._due_ns = 0
        self._holding = False
        self._goodbye_wanted = False
        self._said_goodbye = False
        self._leaving = False
        self._said_drained = False
        self._drained: set[int] = set()
        self._finished = False
        self._next_clock_s = time.monotonic() + CLOCK_INTERVAL_S
        self._next_stall_check_s = time.monotonic() + config.stall_warning_s
        self.mark_cycles = config.mark_cycles
        self._thread = threading.Thread(target=self._run, name="tlkit-control", daemon=True)

    # Called by other threads.

    def start(self) -> None:
        """Begin to serve."""
        self._executor.on_progress = self._progressed
        self._executor.on_failure = self._execution_failed
        self._executor.start()
        self._thread.start()

    def submit(self, entries: list[Entry]) -> None:
        """Submit tensors, all or none (see `Member.submit`)."""
        self.member.submit(entries)
        if not self._notified:
            self._notified = True
            self._wake()

    def flush(self) -> None:
        """Say at once what was submitted: somebody waits."""
        if self.member.has_unsaid or self._notified:
            self._flush = True
            self._wake()

    def shut_down(self, timeout_s: float) -> None:
        """End the control plane of the whole job and wait until this rank's part has ended."""
        self._goodbye_wanted = True
        self._wake()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.warning("rank %d: the other ranks did not end within %g s", self._rank, timeout_s)
            self._finished = True
            self._wake()
            self._thread.join(1.0)

    def _wake(self) -> None:
        # The descriptor's number may be somebody else's once it is closed, so closing and writing exclude each other.
        with self._waking:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def _progressed(self) -> None:
        """The executor has begun or finished a batch."""
        if self._holding or self._leaving:
            self._wake()

    def _execution_failed(self, reason: str) -> None:
        """The executor could not do what all ranks agreed on."""
        self._failure = reason
        self._wake()

    _failure: str | None = None

    # The control thread.

    def _run(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._wake_fd, selectors.EVENT_READ, -1)
        for rank, channel in self._channels.items():
            selector.register(channel, selectors.EVENT_READ, rank)
        try:
            while not self._finished:
                for key, _ in selector.select(self._timeout_s()):
                    if key.data < 0:
                        os.eventfd_read(self._wake_fd)
                    else:
                        self._receive(key.data, selector)
                self._tick()
        except Exception as error:  # whatever it is, the training must hear of it instead of waiting for ever
            _log.exception("Horovod background loop uncaught exception")
            self._abort(f"rank {self._rank}: {error}")
        finally:
            selector.close()
            for channel in self._channels.values():
                channel.close()
            self._executor.stop()
            with self._waking:
                descriptor, self._wake_fd = self._wake_fd, -1
                os.close(descriptor)

    def _timeout_s(self) -> float | None:
        """How long there is nothing to do unless something happens."""
        times = []
        if self.member.has_unsaid:
            times.append((self._due_ns - time.monotonic_ns()) / 1e9 if self._due_ns else 0.0)
        now_s = time.monotonic()
        if self._follow_clock and recorder.is_timeline_on():
            times.append(self._next_clock_s - now_s)
        if self._coordinator is not None and self._config.stall_check:
            times.append(self._next_stall_check_s - now_s)
        return max(0.0, min(times)) if times else None

    def _receive(self, rank: int, selector: selectors.BaseSelector) -> None:
        channel = self._channels[rank]
        try:
            messages = channel.receive()
        except (OSError, ValueError) as error:
            selector.unregister(channel)
            del self._channels[rank]
            channel.close()
            self._lost(rank, error)
            return
        for message in messages:
            self._handle(rank, message)

    def _lost(self, rank: int, error: Exception) -> None:
        if self._leaving:
            self._drained.add(rank)
            if self._coordinator is None:
                self._finished = True
            return
        self._abort(f"rank {rank} on {self._hosts[rank]} is gone: {error}")

    def _handle(self, rank: int, message: Message) -> None:  # noqa: PLR0912  one arm a message
        coordinator = self._coordinator
        match message:
            case Ready() if coordinator is not None:
                unknown = coordinator.receive(rank, message, self._offsets_ns[rank])
                if unknown:
                    self._send(rank, Resend(unknown))
            case Work():
                self._execute(message)
            case Resend():
                self.member.repeat(message.ids)
                self._flush = True
            case ClockPing():
                self._send(rank, ClockPong(message.sent_ns, time.monotonic_ns()))
            case ClockPong():
                self._note_clock(message)
            case ClockOffset():
                self._offsets_ns[rank] = message.offset_ns
            case Failed() if coordinator is not None:
                self._abort(message.reason)
            case Abort():
                self._abort(message.reason)
            case Goodbye():
                if coordinator is not None:
                    self._end_job(f"rank {rank} has shut down")
                else:
                    self._leave(message.reason)
            case Drained():
                self._drained.add(rank)
                if coordinator is None:
                    self._finished = True
            case _:
                self._abort(f"rank {rank} sent a {type(message).__name__}, which nobody asked for")

    def _tick(self) -> None:
        if self._failure is not None:
            reason, self._failure = self._failure, None
            if self._coordinator is None:
                self._send(0, Failed(reason))
            self._abort(reason)
        self._speak()
        if self._coordinator is not None:
            self._dispatch()
            self._check_stalls()
        if self._goodbye_wanted and not self._said_goodbye:
            self._say_goodbye()
        if self._leaving:
            self._drain()
        if self._follow_clock and time.monotonic() >= self._next_clock_s:
            self._next_clock_s = time.monotonic() + CLOCK_INTERVAL_S
            self._send(0, ClockPing(time.monotonic_ns()))

    def _speak(self) -> None:
        """Tell the coordinator what was submitted, if it is time."""
        if not self.member.has_unsaid:
            # Cleared before the second look: a tensor that comes after it wakes this thread, one before it is seen.
            self._notified = False
            self._flush = False
            if not self.member.has_unsaid:
                return
        now_ns = time.monotonic_ns()
        if not self._due_ns:
            self._due_ns = now_ns + round(self._config.cycle_time_s * 1e9)
        if not self._flush and now_ns < self._due_ns:
            return
        self._due_ns = 0
        self._flush = False
        self._notified = False
        ready = self.member.collect()
        if ready is None:
            return
        writer = recorder.timeline() if self.mark_cycles else None
        if writer is not None:
            writer.instant(CYCLE_START, now_ns)
        if self._coordinator is None:
            self._send(0, ready)
        else:
            unknown = self._coordinator.receive(self._rank, ready, 0)
            if unknown:
                self.member.repeat(unknown)
                self._flush = True
                self._wake()

    def _dispatch(self) -> None:
        """Send out what is ready, unless so much is under way that waiting makes larger batches."""
        coordinator = self._coordinator
        assert coordinator is not None
        # Set before the executor is asked, so that a batch which ends in between wakes this thread.
        self._holding = coordinator.has_ready
        if not self._holding:
            return
        if self._executor.load >= MOST_QUEUED and not coordinator.is_full:
            return
        self._holding = False
        work = coordinator.take()
        if work is None:
            return
        if len(self._hosts) > 1:
            plain = [msgspec.structs.replace(response, arrivals_ns=[]) for response in work.responses]
            payload = encode(Work(plain, work.forgotten))
            for rank in list(self._channels):
                self._send_encoded(rank, payload)
        self._execute(work)

    def _execute(self, work: Work) -> None:
        negotiated_ns = time.monotonic_ns()
        for response, entries in self.member.receive(work):
            self._executor.put(response, entries, negotiated_ns)

    def _send(self, rank: int, message: Message) -> None:
        self._send_encoded(rank, encode(message))

    def _send_encoded(self, rank: int, payload: bytes) -> None:
        channel = self._channels.get(rank)
        if channel is None:
            return
        try:
            channel.send_encoded(payload)
        except OSError as error:
            _log.debug("rank %d does not take messages any more: %s", rank, error)

    def _note_clock(self, pong: ClockPong) -> None:
        received_ns = time.monotonic_ns()
        measured = offset_of(pong, received_ns)
        writer = recorder.timeline()
        if writer is not None:
            writer.clock(received_ns, measured.offset_ns, measured.uncertainty_ns)
        self._send(0, ClockOffset(measured.offset_ns))

    def _check_stalls(self) -> None:
        now_s = time.monotonic()
        if not self._config.stall_check or now_s < self._next_stall_check_s:
            return
        self._next_stall_check_s = now_s + max(self._config.stall_warning_s, 0.1)
        assert self._coordinator is not None
        stalled = self._coordinator.find_stalled(time.monotonic_ns(), round(self._config.stall_warning_s * 1e9))
        reason = report_stalls(stalled, self._config)
        if reason:
            self._abort(reason)

    # Leaving.

    def _say_goodbye(self) -> None:
        self._said_goodbye = True
        if self._leaving:
            return
        if self._follow_clock and recorder.is_timeline_on():
            self._send(0, ClockPing(time.monotonic_ns()))
        if self._coordinator is not None:
            self._end_job(f"rank {self._rank} has shut down")
        elif 0 in self._channels:
            self._send(0, Goodbye())
        else:
            self._leave("rank 0 is gone")

    def _end_job(self, reason: str) -> None:
        """Rank 0: the first rank that shuts down ends the job for all."""
        if self._leaving:
            return
        for rank in list(self._channels):
            self._send(rank, Goodbye(reason))
        self._leave(reason)

    def _leave(self, reason: str) -> None:
        if self._leaving:
            return
        self._leaving = True
        self._completions.finish(entries := self.member.close(reason), self.member.closed)
        if entries:
            _log.debug("%d tensors were still waiting when %s", len(entries), reason)

    def _drain(self) -> None:
        """Leave only when everybody has done what was agreed on: a transport must not close under a peer."""
        if not self._said_drained and self._executor.load == 0:
            self._said_drained = True
            self._drained.add(self._rank)
            if self._coordinator is None:
                self._send(0, Drained())
                if 0 not in self._channels:
                    self._finished = True
        if self._coordinator is not None and self._said_drained and not set(self._channels) - self._drained:
            for rank in list(self._channels):
                self._send(rank, Drained())
            self._finished = True

    def _abort(self, reason: str) -> None:
        """Something is broken for good: fail everything, here and everywhere."""
        if self._finished:
            return
        if self._coordinator is not None:
            for rank in list(self._channels):
                self._send(rank, Abort(reason))
        _log.error("Horovod background loop uncaught exception: %s", reason)
        entries = self.member.close(reason)
        error = self.member.closed
        self._completions.finish(entries, error)
        self._executor.abort(error or reason)
        self._leaving = True
        self._finished = True
