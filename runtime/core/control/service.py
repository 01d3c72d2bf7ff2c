"""The threads of the control plane of one rank: who attends to its connections, and when.

What is said and decided is a `Node`'s business.  A thread of its own calls it while the training computes (it sleeps until
something happens, so an idle job costs nothing).  A training that waits for a result calls it itself and executes what it is
told: the way to the result then leads through no other thread of this process.
"""

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from ..config import Config
from ..errors import HorovodInternalError
from ..executor import Executor
from ..work import Completions, Entry, Handle
from .channel import Channel
from .clock_sync import ClockFollower
from .coordinator import Coordinator
from .endings import HEARSAY_S, SILENCE_S
from .leaving import SHUTDOWN_TIMEOUT_S
from .links import Links, LostRank
from .node import Node
from .sources import Sources
from .tensor_table import TensorRecord, TensorTable

_log = logging.getLogger("tlkit.runtime")

#: How long a training that waits looks for an answer before it goes to sleep.  To be woken takes about as long as an answer
#: takes to come when all ranks are there; the cores are idle then.
SPIN_NS: Final = 150_000

#: How long a thread waits before it looks again whether it can take over the connections; doubles up to the second.
_FIRST_LOOK_S, _LAST_LOOK_S = 0.0005, 0.05

#: How long the last words wait for ranks that do not read.
_LINGER_S: Final = 1.0

#: How long an operation under way has after the job has failed, before its connections are taken away.
_LAST_CHANCE_S: Final = 0.2

#: An operation of several steps may begin with another one after that, on what is connected then.
_MAX_ABORTS: Final = 25


class ControlPlane:
    """The control plane of one rank."""

    def __init__(
        self,
        *,
        rank: int,
        hosts: tuple[str, ...],
        channels: Mapping[int, Channel],
        tensor_table: TensorTable,
        coordinator: Coordinator | None,
        executor: Executor,
        completions: Completions,
        config: Config,
        follower: ClockFollower | None,
        core: int | None = None,
    ) -> None:
        """Join the parts (see `Node`).

        Args:
            channels: by rank; on rank 0 one to every other rank, elsewhere one to rank 0.
            core: where the thread runs; None for anywhere.
        """
        self.tensor_table = tensor_table
        self._rank = rank
        self._executor = executor
        self._completions = completions
        self._core = core
        self._sources = Sources(channels.values())
        # Whoever holds the role attends to the connections, and alone calls the node.
        self._role = threading.Lock()
        self._holder = 0
        """The thread that drives, 0 for none."""
        self._waiting: list[None] = []
        """One item for each thread that waits; to append and to pop are atomic."""
        self._links = Links(channels, lambda channel, writing: self._sources.watch(channel, writing=writing))
        self.node = Node(
            rank=rank,
            hosts=hosts,
            links=self._links,
            tensor_table=tensor_table,
            coordinator=coordinator,
            executor=executor,
            completions=completions,
            config=config,
            clock_ns=time.monotonic_ns,
            follower=follower,
            is_blocked=lambda: bool(self._waiting),
        )
        # To look now and then who does not come on.
        self._longest_sleep_s = min(max(config.stall_warning_s / 4, 0.05), 15.0) if config.stall_check else None
        self._thread = threading.Thread(target=self._run, name="tlkit-control", daemon=True)

    @property
    def aborted(self) -> bool:
        """Whether the job ended by a failure; the other ranks may be gone then."""
        return self.node.aborted

    # Called by other threads.

    def start(self) -> None:
        """Begin to serve."""
        self._executor.on_progress = self._progressed
        self._executor.on_failure = self._execution_failed
        self._executor.start()
        for rank, message in self._links.take_kept():
            self.node.handle(rank, message)
            self._sources.wake_thread()
        self._thread.start()

    def submit(self, entries: list[Entry], *, waits: bool = False, hurry: bool = False) -> None:
        """Submit tensors, all or none (see `TensorTable.submit`).

        Args:
            waits: whether the caller is going to `wait` for them at once, and will say them itself.
            hurry: whether they are said without waiting for others to come along.
        """
        node = self.node
        self.tensor_table.submit(entries)
        if hurry:
            node.due_ns = 1
            if self._role.acquire(blocking=False):
                self._speak_here()
                return
        if not node.notified and not waits:
            node.notified = True
            self._sources.wake_thread()

    def submit_again(self, record: TensorRecord, entry: Entry) -> None:
        """Submit a tensor that nobody waits for yet, and that was submitted before (see `TensorTable.submit_again`)."""
        if not self.tensor_table.submit_again(record, entry):
            self.tensor_table.submit([entry])
        node = self.node
        if not node.notified:
            node.notified = True
            self._sources.wake_thread()

    def wait(self, handle: Handle) -> None:
        """Block until `handle` is done; drives the control plane meanwhile, unless another thread does.

        Raises:
            HorovodInternalError: a signal handler that has interrupted the runtime waits for it.
        """
        if self._holder == threading.get_ident() or self._executor.is_executing_here:
            raise HorovodInternalError(
                "a signal handler cannot wait for an operation while it interrupts one of the same thread: start it with "
                "..._async, and synchronize after the handler has returned"
            )
        look_s = _FIRST_LOOK_S
        executor, node = self._executor, self.node
        self._waiting.append(None)
        try:
            while handle.remaining:
                if executor.load and executor.help_out():
                    continue
                if not node.finished and self._role.acquire(blocking=False):
                    self._drive(handle)
                    continue
                if self.tensor_table.has_unsent:
                    self._sources.wake_thread()
                self._completions.wait(handle, look_s)
                look_s = min(2 * look_s, _LAST_LOOK_S)
        except BaseException:
            # Ctrl-C may have come between a message and what it was to cause.
            self._execution_failed(f"rank {self._rank} was interrupted while it waited")
            raise
        finally:
            self._waiting.pop()
            executor.wake()

    def shut_down(self) -> bool:
        """End the control plane of the whole job and wait until this rank's part has ended; whether it did in time."""
        self.node.goodbye_wanted = True
        self._sources.wake_thread()
        self._thread.join(SHUTDOWN_TIMEOUT_S)
        if self._thread.is_alive():
            self.node.departure.give_up()
            self._sources.wake_thread()
            self._thread.join(1.0)
            return False
        return not self.node.departure.gave_up

    def fail_start(self, reason: str) -> str:
        """This rank cannot connect to others: end the job, and wait until it is known why.

        Returns:
            What the ranks agree on as the cause.
        """
        self._execution_failed(reason)
        self._thread.join(HEARSAY_S + SILENCE_S)
        return self.tensor_table.cause or reason

    def leave_in_child(self) -> None:
        """This is a forked process: close its copies of the connections, which would hide this rank's death from the others."""
        for channel in self._links.channels():
            channel.close()
        self._sources.close_in_child()

    def raise_alarm(self, kind: str, why: str) -> None:
        """Have all ranks set aside what they have recorded (see `Alarms`)."""
        self.node.alarms.add(kind, why)
        self._sources.wake_thread()

    def _progressed(self) -> None:
        """The executor has begun or finished a batch."""
        if self.node.wants_progress:
            self._sources.wake_thread()

    def _execution_failed(self, reason: str, entries: Sequence[Entry] = ()) -> None:
        """The executor could not do what all ranks agreed on; takes over its entries."""
        self.node.fail(reason, entries)
        self._sources.wake_thread()

    # Whoever holds the role.

    def _run(self) -> None:
        """The control thread: drives the control plane when there is work and no other thread does."""
        if self._core is not None:
            try:
                os.sched_setaffinity(0, {self._core})
            except OSError as error:
                _log.warning("the control thread cannot be pinned to core %d: %s", self._core, error.strerror)
        node = self.node
        try:
            while not node.finished:
                self._sources.wait(self._sleep_s())
                if not self._role.acquire(blocking=False):
                    # Somebody drives, and will see the connections; what was submitted or has failed he has to be told.
                    self._sources.wake_driver()
                    continue
                try:
                    self._serve(0)
                    node.tick()
                finally:
                    self._role.release()
        except Exception as error:  # whatever it is, the training must hear of it instead of waiting for ever
            self._broken(error)
        finally:
            self._close()

    def _sleep_s(self) -> float | None:
        """How long the thread may sleep.  The driver checks the clock itself."""
        timeout_s = self.node.timeout_s() if not self._holder else None
        if timeout_s is None or self._longest_sleep_s is None:
            return self._longest_sleep_s if timeout_s is None else timeout_s
        return min(timeout_s, self._longest_sleep_s)

    def _drive(self, handle: Handle) -> None:
        """Attend to the connections until `handle` is done or there is something to execute.  Lets go of the role then."""
        executor, node = self._executor, self.node
        try:
            self._holder = threading.get_ident()
            node.executes_itself = True
            self._sources.silence()
            self._completions.on_finish = self._sources.wake_driver
            while handle.remaining and not node.finished:
                node.tick()
                if not handle.remaining or executor.can_help:
                    break
                self._serve(node.timeout_s(), SPIN_NS)
        except Exception as error:  # as above
            self._broken(error)
        finally:
            self._completions.on_finish = None
            node.executes_itself = False
            self._sources.resume()
            self._holder = 0
            self._role.release()
            if node.has_to_go_on:
                self._sources.wake_thread()

    def _speak_here(self) -> None:
        """Say what was submitted on the calling thread, which holds the role: to wake another for it takes longer."""
        try:
            self._holder = threading.get_ident()
            self.node.tick()
        except Exception as error:  # as above
            self._broken(error)
        except BaseException:
            self._execution_failed(f"rank {self._rank} was interrupted while it submitted")
            raise
        finally:
            self._holder = 0
            self._role.release()
            if self.node.has_to_go_on:
                self._sources.wake_thread()

    def _serve(self, timeout_s: float | None, spin_ns: int = 0) -> None:
        """Wait for messages for as long as `timeout_s`, and handle what has come."""
        for descriptor, readable, writable in self._sources.ready(timeout_s, spin_ns):
            if writable:
                self._links.flush(descriptor)
            if readable:
                self._receive(descriptor)

    def _receive(self, descriptor: int) -> None:
        try:
            rank, messages = self._links.receive(descriptor)
        except LostRank as lost:
            channel = self._links.drop(lost.rank)
            if channel is not None:
                self._sources.forget(channel)
                channel.close()
            self.node.lose(lost.rank, str(lost))
            return
        for message in messages:
            self.node.handle(rank, message)

    def _broken(self, error: Exception) -> None:
        _log.exception("Horovod background loop uncaught exception")
        self.node.abort(f"rank {self._rank}: {error}")
        self._sources.wake_thread()

    def _close(self) -> None:
        with self._role:
            self.node.end()
            self._say_last_words()
            for channel in self._links.channels():
                channel.close()
            self._executor.stop()
            self._sources.close()
        if self._executor.load and not self.node.aborted:
            # Others have left before this rank has done what was agreed on, or this rank does not wait for them any longer.
            self._executor.abort(self.tensor_table.closed or "the runtime has ended")
        if self._executor.load or self.node.aborted:
            for _ in range(_MAX_ABORTS):
                if self._executor.is_idle_within(_LAST_CHANCE_S):
                    break
                self._executor.abort_groups()

    def _say_last_words(self) -> None:
        """Wait until what was said last has gone out, and rank 0 until the others have heard why they were left."""
        give_up = time.monotonic() + _LINGER_S
        while self._links.has_backlog and (left_s := give_up - time.monotonic()) > 0:
            for descriptor, _, writable in self._sources.ready(left_s):
                if writable:
                    self._links.flush(descriptor)
                else:
                    self._discard(descriptor)
        for channel in self._links.channels():
            channel.finish()
        while self._rank == 0 and self._links.ranks and (left_s := give_up - time.monotonic()) > 0:
            for descriptor, _, __ in self._sources.ready(left_s):
                self._discard(descriptor)

    def _discard(self, descriptor: int) -> None:
        """Read what nobody cares for any more: to close over it would take from the other side what it has not read yet."""
        try:
            self._links.receive(descriptor)
        except LostRank as lost:
            channel = self._links.drop(lost.rank)
            if channel is not None:
                self._sources.forget(channel)
                channel.close()
