"""The control plane of one rank: the sockets, and who attends to them.

`Member` and `Coordinator` decide; this module carries their messages.  A thread of its own does so while the training computes
(it sleeps until something happens, so an idle job costs nothing).  A training that waits for a result attends to the sockets
itself and executes what it is told: the way to the result then leads through no other thread of this process.
"""

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from ....timeline import recorder
from ....timeline.vocabulary import CYCLE_START
from ..config import Config
from ..executor import Executor
from ..work import Completions, Entry, Handle
from .autotune import Autotuner
from .channel import Channel
from .clock_sync import offset_of
from .coordinator import Coordinator, Orders, share_out
from .endings import GRACE_S, Failures, farewell
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
from .sources import Sources
from .stalls import report_stalls

_log = logging.getLogger("tlkit.runtime")

#: Batches that may be under way or queued before the coordinator holds further ones back.
MOST_QUEUED: Final = 2

CLOCK_INTERVAL_S: Final = 60.0

#: How long a training that waits looks for an answer before it goes to sleep.  To be woken takes about as long as an answer
#: takes to come when all ranks are there; the cores are idle then.
SPIN_NS: Final = 50_000

#: How long a thread waits before it looks again whether it can take over the sockets; doubles up to the second.
_FIRST_LOOK_S, _LAST_LOOK_S = 0.0005, 0.05


class ControlPlane:
    """The control plane of one rank."""

    def __init__(
        self,
        *,
        rank: int,
        hosts: tuple[str, ...],
        channels: Mapping[int, Channel],
        member: Member,
        coordinator: Coordinator | None,
        executor: Executor,
        completions: Completions,
        config: Config,
        follow_clock: bool,
        core: int | None = None,
    ) -> None:
        """Join the parts.

        Args:
            channels: by rank; on rank 0 one to every other rank, elsewhere one to rank 0.
            coordinator: on rank 0 only.
            follow_clock: whether this rank's clock has to be compared with rank 0's now and then.
            core: where the thread runs; None for anywhere.
        """
        self.member = member
        self._rank = rank
        self._hosts = hosts
        self._channels = dict(channels)
        self._by_descriptor = {channel.fileno(): other for other, channel in channels.items()}
        self._coordinator = coordinator
        self._executor = executor
        self._completions = completions
        self._config = config
        self._autotuner = Autotuner(config) if coordinator is not None and config.autotune else None
        self._offsets_ns = dict.fromkeys(range(len(hosts)), 0)
        self._follow_clock = follow_clock
        self._core = core
        # Whoever holds the role attends to the sockets; all state below is his.
        self._role = threading.Lock()
        self._sources = Sources(channels.values())
        self._driven = False
        self._cycle_time_s = config.cycle_time_s
        self._notified = False
        self._blocked = False
        self._due_ns = 0
        self._holding = False
        # Rank 0 hears of every rank's death, the others hear it from rank 0.
        self._failures = Failures(completions, GRACE_S if coordinator is not None else 2 * GRACE_S)
        self._goodbye_wanted = False
        self._said_goodbye = False
        self._leaving = False
        self._said_drained = False
        self._drained: set[int] = set()
        self._finished = False
        self._stall_interval_s = min(max(config.stall_warning_s / 4, 0.05), 15.0)
        now_s = time.monotonic()
        self._next_clock_s = now_s + CLOCK_INTERVAL_S
        self._next_stall_check_s = now_s + self._stall_interval_s
        self.mark_cycles = config.mark_cycles
        self.records_elsewhere = False
        """Whether rank 0 records when this rank is ready, though this rank has no timeline of its own."""
        self._thread = threading.Thread(target=self._run, name="tlkit-control", daemon=True)

    # Called by other threads.

    def start(self) -> None:
        """Begin to serve."""
        self._executor.on_progress = self._progressed
        self._executor.on_failure = self._execution_failed
        self._executor.start()
        for rank, channel in list(self._channels.items()):
            for message in channel.take_kept():
                self._handle(rank, message)
                self._sources.wake_thread()
        self._thread.start()

    def submit(self, entries: list[Entry], *, waits: bool = False, hurry: bool = False) -> None:
        """Submit tensors, all or none (see `Member.submit`).

        Args:
            waits: whether the caller is going to `wait` for them at once, and will say them itself.
            hurry: whether they are said without waiting for others to come along.
        """
        self.member.submit(entries)
        if hurry:
            self._due_ns = 1
        if not self._notified and not waits:
            self._notified = True
            self._sources.wake_thread()

    def wait(self, handle: Handle) -> None:
        """Block until `handle` is done; serves the control plane meanwhile, unless somebody else does."""
        look_s = _FIRST_LOOK_S
        executor = self._executor
        self._blocked = True
        try:
            while handle.remaining:
                if executor.load and executor.help_out():
                    continue
                if not self._finished and self._role.acquire(blocking=False):
                    self._drive(handle)
                    continue
                if self.member.has_unsaid:
                    self._sources.wake_thread()
                self._completions.wait(handle, look_s)
                look_s = min(2 * look_s, _LAST_LOOK_S)
        except BaseException:
            # Ctrl-C may have come between a message and what it was to cause.
            self._execution_failed(f"rank {self._rank} was interrupted while it waited")
            raise
        finally:
            self._blocked = False
            executor.wake()

    def shut_down(self, timeout_s: float) -> bool:
        """End the control plane of the whole job and wait until this rank's part has ended; whether it did in time."""
        self._goodbye_wanted = True
        self._sources.wake_thread()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.warning("rank %d: the other ranks did not end within %g s", self._rank, timeout_s)
            self._finished = True
            self._sources.wake_thread()
            self._thread.join(1.0)
            return False
        return True

    def _progressed(self) -> None:
        """The executor has begun or finished a batch."""
        if self._holding or self._leaving:
            self._sources.wake_thread()

    def _execution_failed(self, reason: str, entries: Sequence[Entry] = ()) -> None:
        """The executor could not do what all ranks agreed on; takes over its entries."""
        self._failures.note(reason, entries)
        self._sources.wake_thread()

    # Whoever holds the role.

    def _run(self) -> None:
        """The thread: takes the role whenever something happens and nobody has it."""
        if self._core is not None:
            try:
                os.sched_setaffinity(0, {self._core})
            except OSError as error:
                _log.warning("the control thread cannot be pinned to core %d: %s", self._core, error.strerror)
        try:
            while not self._finished:
                self._sources.wait(self._timeout_s())
                if not self._role.acquire(blocking=False):
                    # Somebody drives, and will see the sockets; what was submitted or has failed he has to be told.
                    self._sources.wake_driver()
                    continue
                try:
                    self._serve(0)
                    self._tick()
                finally:
                    self._role.release()
        except Exception as error:  # whatever it is, the training must hear of it instead of waiting for ever
            self._broken(error)
        finally:
            self._close()

    def _drive(self, handle: Handle) -> None:
        """Attend to the sockets until `handle` is done or there is something to execute.  Takes the role, and lets go of it."""
        executor = self._executor
        try:
            self._driven = True
            self._sources.silence()
            self._completions.on_finish = self._sources.wake_driver
            while handle.remaining and not self._finished:
                self._tick()
                if not handle.remaining or executor.can_help:
                    break
                self._serve(self._timeout_s(), SPIN_NS)
        except Exception as error:  # as above
            self._broken(error)
        finally:
            self._completions.on_finish = None
            self._driven = False
            self._sources.resume()
            self._role.release()
            if self._has_to_go_on():
                self._sources.wake_thread()

    def _has_to_go_on(self) -> bool:
        """Whether the thread has something to do, or to watch, once nobody drives."""
        return bool(
            self._finished
            or self._leaving
            or self._holding
            or self.member.has_unsaid
            or self._failures.are_open
            or (self._coordinator is not None and not self._coordinator.is_idle)
        )

    def _serve(self, timeout_s: float | None, spin_ns: int = 0) -> None:
        """Wait for messages for as long as `timeout_s`, and handle what has come."""
        for descriptor in self._sources.readable(timeout_s, spin_ns):
            self._receive(descriptor)

    def _broken(self, error: Exception) -> None:
        _log.exception("Horovod background loop uncaught exception")
        self._abort(f"rank {self._rank}: {error}")
        self._sources.wake_thread()

    def _close(self) -> None:
        with self._role:
            self._failures.end(self.member.closed or self._failures.suspicion or "the runtime has ended")
            for channel in self._channels.values():
                channel.close()
            self._executor.stop()
            self._sources.close()

    def _timeout_s(self) -> float | None:
        """How long there is nothing to do unless something happens."""
        times = []
        if (remaining_s := self._failures.remaining_s) is not None:
            times.append(remaining_s)
        if self.member.has_unsaid and not self._driven:
            times.append((self._due_ns - time.monotonic_ns()) / 1e9 if self._due_ns else 0.0)
        now_s = time.monotonic()
        if self._follow_clock and recorder.is_timeline_on():
            times.append(self._next_clock_s - now_s)
        if self._coordinator is not None and self._config.stall_check and not self._coordinator.is_idle:
            times.append(self._next_stall_check_s - now_s)
        return max(0.0, min(times)) if times else None

    def _receive(self, descriptor: int) -> None:
        rank = self._by_descriptor[descriptor]
        channel = self._channels[rank]
        try:
            messages = channel.receive()
        except (OSError, ValueError) as error:
            self._sources.forget(channel)
            del self._channels[rank], self._by_descriptor[descriptor]
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
                self._take_note(coordinator, rank, message)
            case Work():
                self._execute(message)
            case Resend():
                self.member.repeat(message.process_set, message.ids)
                self._due_ns = 1
            case ClockPing():
                self._send(rank, ClockPong(message.sent_ns, time.monotonic_ns()))
            case ClockPong():
                self._note_clock(message)
            case ClockOffset():
                self._offsets_ns[rank] = message.offset_ns
            case Failed() if coordinator is not None:
                self._failures.suspect(message.reason)
            case Abort():
                self._abort(message.reason)
            case Goodbye():
                if coordinator is not None:
                    self._end_job(message.reason)
                else:
                    self._leave(message.reason)
            case Drained():
                self._drained.add(rank)
                if coordinator is None:
                    self._finished = True
            case _:
                self._abort(f"rank {rank} sent a {type(message).__name__}, which nobody asked for")

    def _take_note(self, coordinator: Coordinator, rank: int, ready: Ready) -> None:
        for resend in coordinator.receive(rank, ready, self._offsets_ns[rank], time.monotonic_ns()):
            if rank == self._rank:
                self.member.repeat(resend.process_set, resend.ids)
                self._due_ns = 1
                self._sources.wake_thread()
            else:
                self._send(rank, resend)

    def _tick(self) -> None:
        if (reason := self._failures.take_new()) is not None:
            if self._coordinator is None:
                self._send(0, Failed(reason))
            self._failures.suspect(reason)
        remaining_s = self._failures.remaining_s
        if remaining_s is not None and remaining_s <= 0:
            self._abort(self._failures.suspicion or "")
        self._speak()
        if self._coordinator is not None:
            self._dispatch(self._coordinator)
            self._check_stalls(self._coordinator)
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
            # Cleared before the second look: a tensor that comes after it wakes the thread, one before it is seen.
            self._notified = False
            if not self.member.has_unsaid:
                return
        now_ns = time.monotonic_ns()
        if not self._due_ns:
            self._due_ns = now_ns + round(self._cycle_time_s * 1e9)
        if not self._blocked and now_ns < self._due_ns:
            return
        self._due_ns = 0
        self._notified = False
        writer = recorder.timeline()
        self.member.send_times = writer is not None or self.records_elsewhere
        ready = self.member.collect(blocked=self._blocked)
        if ready is None:
            return
        if writer is not None and self.mark_cycles:
            writer.instant(CYCLE_START, now_ns)
        if self._coordinator is None:
            self._send(0, ready)
        else:
            self._take_note(self._coordinator, self._rank, ready)

    def _dispatch(self, coordinator: Coordinator) -> None:
        """Send out what is ready, unless so much is under way that waiting makes larger batches."""
        # Set before the executor is asked, so that a batch which ends in between wakes the thread.
        self._holding = coordinator.has_ready
        if not self._holding:
            return
        if self._executor.load >= MOST_QUEUED and not coordinator.is_full:
            return
        self._holding = False
        nbytes = coordinator.ready_nbytes
        orders = coordinator.take()
        if orders is None:
            return
        if self._autotuner is not None:
            self._tune(self._autotuner, coordinator, orders, nbytes)
        works = share_out(orders, self._rank, self._channels)
        payloads: dict[int, bytes] = {}
        for rank, work in works.items():
            if rank != self._rank:
                # Ranks that get the same share one object; it is encoded once.
                payload = payloads.get(id(work))
                if payload is None:
                    payload = payloads[id(work)] = encode(work)
                self._send_encoded(rank, payload)
        if self._rank in works:
            self._execute(works[self._rank])

    def _tune(self, autotuner: Autotuner, coordinator: Coordinator, orders: Orders, nbytes: int) -> None:
        settings = autotuner.observe(orders, nbytes, time.monotonic_ns())
        if settings is not None:
            coordinator.fusion_threshold_nbytes = settings.fusion_threshold_nbytes
            self._cycle_time_s = settings.cycle_time_s
            payload = encode(Work([], cycle_time_s=settings.cycle_time_s))
            for rank in list(self._channels):
                self._send_encoded(rank, payload)

    def _execute(self, work: Work) -> None:
        negotiated_ns = time.monotonic_ns()
        if work.cycle_time_s >= 0:
            self._cycle_time_s = work.cycle_time_s
        for response, entries in self.member.receive(work):
            if entries and entries[0].request.kind == "remove_process_set" and not response.error:
                self.member.forget_process_set(entries[0].request.shape[0])
            self._executor.put(response, entries, negotiated_ns, notify=not self._driven)

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
        measured = offset_of(pong.sent_ns, pong.coordinator_ns, received_ns)
        writer = recorder.timeline()
        if writer is not None:
            writer.clock(received_ns, measured.offset_ns, measured.uncertainty_ns)
        self._send(0, ClockOffset(measured.offset_ns))

    def _check_stalls(self, coordinator: Coordinator) -> None:
        now_s = time.monotonic()
        if not self._config.stall_check or now_s < self._next_stall_check_s:
            return
        self._next_stall_check_s = now_s + self._stall_interval_s
        stalled = coordinator.find_stalled(time.monotonic_ns(), round(self._config.stall_warning_s * 1e9))
        if stalled:
            self._next_stall_check_s = now_s + max(self._config.stall_warning_s, 0.1)
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
        said = farewell(self._rank, self._hosts[self._rank])
        if self._coordinator is not None:
            self._end_job(said)
        elif 0 in self._channels:
            self._send(0, Goodbye(said))
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
        self._failures.end(error or reason)
        self._executor.abort(error or reason)
        self._leaving = True
        self._finished = True
        self.aborted = True

    aborted = False
    """Whether the control plane ended by a failure; the other ranks may be gone then."""
