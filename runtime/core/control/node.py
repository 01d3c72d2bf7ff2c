"""The control plane of one rank, without threads, sockets or a clock: what it hears, and what it does about it.

Somebody hands in what has come (`handle`, `lose`), lets it act (`tick`) and asks when it wants to act again (`timeout_s`):
the rank's own threads (`service.py`), or a test which runs many ranks in one thread.
"""

import logging
from collections.abc import Callable, Sequence

from ....timeline.record import recorder
from ....timeline.vocabulary import CYCLE_START
from ..config import Config
from ..executor import Executor
from ..kinds import Kind
from ..work import Completions, Entry
from .alarms import Alarms
from .clock_sync import ClockFollower
from .coordinator import Coordinator
from .desk import Desk
from .endings import GRACE_S, HEARSAY_S, SILENCE_S, Failures, farewell
from .leaving import Departure
from .links import Links
from .messages import (
    Abort,
    Alarm,
    Ask,
    ClockPing,
    ClockPong,
    ClockReport,
    Drained,
    Failed,
    Goodbye,
    Message,
    Progress,
    Ready,
    Work,
)
from .tensor_table import TensorTable
from .watch import NO_ANSWER, LeaderWatch

_log = logging.getLogger("tlkit.runtime")


class Node:
    """One rank's part in the control plane.  One thread at a time calls it."""

    def __init__(
        self,
        *,
        rank: int,
        hosts: tuple[str, ...],
        links: Links,
        tensor_table: TensorTable,
        coordinator: Coordinator | None,
        executor: Executor,
        completions: Completions,
        config: Config,
        clock_ns: Callable[[], int],
        follower: ClockFollower | None = None,
        is_blocked: Callable[[], bool] = lambda: False,
    ) -> None:
        """Join the parts.

        Args:
            coordinator: on rank 0 only.
            clock_ns: this rank's monotonic clock.
            follower: compares the clock with rank 0's now and then; None where the clocks are one.
            is_blocked: whether the training waits, so that nothing more will be submitted before it gets an answer.
        """
        self.tensor_table = tensor_table
        self.links = links
        self._rank = rank
        self._hosts = hosts
        self._executor = executor
        self._completions = completions
        self._config = config
        self._clock_ns = clock_ns
        self._follower = follower
        self._is_blocked = is_blocked
        self._cycle_time_ns = round(config.cycle_time_s * 1e9)
        self.alarms = Alarms(links, clock_ns, leads=coordinator is not None)
        self.desk = None
        if coordinator is not None:
            self.desk = Desk(
                coordinator,
                rank=rank,
                hosts=hosts,
                links=links,
                executor=executor,
                config=config,
                clock_ns=clock_ns,
                execute=self._execute,
                alarm=self.alarms.add,
            )
        # Rank 0 hears of every rank's death, the others hear it from rank 0.
        self.failures = Failures(completions, GRACE_S if coordinator is not None else HEARSAY_S, clock_ns)
        self.departure = Departure(rank, links, leads=coordinator is not None, close=self._close_member)
        self._leader = LeaderWatch(hosts[0], config, lambda: bool(executor.load or tensor_table.pending()))
        self._silence_counts = False
        self.goodbye_wanted = False
        self.notified = False
        """Whether the driver was woken for submissions that are not sent yet."""
        self.due_ns = 0
        """When it is said; 0 if nothing waits."""
        self.executes_itself = False
        """Whether the caller will execute the responses itself."""
        self.mark_cycles = config.mark_cycles
        self.records_elsewhere = False
        """Whether rank 0 records when this rank is ready, though this rank has no timeline of its own."""
        self.aborted = False
        """Whether the job ended by a failure; the other ranks may be gone then."""

    def change_settings(self, fusion_threshold_nbytes: int, cycle_time_s: float) -> None:
        """Let other values hold from now on.  Called by any thread: each is one assignment."""
        self._cycle_time_ns = round(cycle_time_s * 1e9)
        if self.desk is not None:
            self.desk.wanted_threshold_nbytes = fusion_threshold_nbytes

    @property
    def finished(self) -> bool:
        """Whether there is nothing to do any more."""
        return self.departure.finished

    @property
    def has_to_go_on(self) -> bool:
        """Whether there is something to do soon, though nothing comes."""
        return bool(
            self.finished
            or self.departure.under_way
            or self.tensor_table.has_unsent
            or self.alarms.are_waiting
            or self.failures.are_open
            or (self.desk is not None and self.desk.is_holding)
        )

    @property
    def wants_progress(self) -> bool:
        """Whether it matters that a batch begins or ends."""
        return self.departure.under_way or (self.desk is not None and self.desk.is_holding)

    def timeout_s(self) -> float | None:
        """How long there is nothing to do unless something happens."""
        times = []
        now_ns = self._clock_ns()
        if (remaining_s := self.failures.remaining_s) is not None:
            times.append(now_ns + round(remaining_s * 1e9))
        if self.tensor_table.has_unsent and not self.links.is_congested:
            times.append(now_ns if self._is_blocked() else self.due_ns)
        if self._follower is not None and recorder.is_timeline_on():
            times.append(self._follower.next_ns)
        if (leave_ns := self.departure.next_ns) is not None:
            times.append(leave_ns)
        if self.desk is not None:
            if (check_ns := self.desk.next_check_ns) is not None:
                times.append(check_ns)
        elif (act_ns := self._leader.next_ns) is not None:
            times.append(act_ns)
        return max(0.0, (min(times) - now_ns) / 1e9) if times else None

    # What comes.

    def handle(self, rank: int, message: Message) -> None:
        """`rank` has said something."""
        if self.finished:
            return
        if self.desk is None:
            self._leader.heard(self._clock_ns())
            self._obey(rank, message)
        else:
            if self.desk.watch.asked:
                self.desk.watch.heard(rank)
            self._attend(self.desk, rank, message)

    def _attend(self, desk: Desk, rank: int, message: Message) -> None:
        """What rank 0 does when a rank has said something."""
        match message:
            case Ready():
                # Whoever asks after the end has not heard of it yet.
                if not self.departure.under_way:
                    desk.take_note(rank, message)
            case Progress():
                desk.watch.heard(rank, message)
            case Ask():
                self.links.send(rank, self._progress())
            case ClockPing():
                self.links.send(rank, ClockPong(message.sent_ns, self._clock_ns()))
            case ClockReport():
                desk.note_offset(rank, message.offset_ns)
            case Alarm():
                self.alarms.tell_all(message)
            case Failed():
                self._suspect(message.reason)
            case Goodbye():
                self.departure.hear_goodbye(message.reason)
            case Drained():
                self.departure.hear_drained(rank)
            case _:
                self.abort(f"rank {rank} sent a {type(message).__name__}, which was not requested")

    def _obey(self, rank: int, message: Message) -> None:
        """What the others do when rank 0 has said something."""
        match message:
            case Work():
                self._execute(message)
            case Ask():
                self.links.send(rank, self._progress())
            case Progress():
                pass
            case ClockPong():
                self._note_clock(message)
            case Alarm():
                self.alarms.hear(message)
            case Abort():
                self.abort(message.reason)
            case Goodbye():
                self.departure.hear_goodbye(message.reason)
            case Drained():
                self.departure.hear_drained(rank)
            case _:
                self.abort(f"rank {rank} sent a {type(message).__name__}, which was not requested")

    def lose(self, rank: int, why: str) -> None:
        """The connection to `rank` has ended."""
        if self.finished:
            return
        if self.departure.under_way:
            self.departure.lose(rank)
        else:
            self.abort(f"rank {rank} on {self._hosts[rank]} is gone: {why}")

    def _progress(self) -> Progress:
        return Progress(self._executor.done, self._executor.begun)

    def _execute(self, work: Work) -> None:
        negotiated_ns = self._clock_ns()
        if work.cycle_time_s >= 0:
            self._cycle_time_ns = round(work.cycle_time_s * 1e9)
        for response, entries in self.tensor_table.receive(work):
            if entries and entries[0].request.kind is Kind.REMOVE_PROCESS_SET and not response.error:
                self.tensor_table.forget_process_set(entries[0].request.shape[0])
            self._executor.put(response, entries, negotiated_ns, notify=not self.executes_itself)

    def _note_clock(self, pong: ClockPong) -> None:
        if self._follower is None:
            return
        received_ns = self._clock_ns()
        ping, reading = self._follower.note(pong, received_ns)
        if ping is not None:
            self.links.send(0, ping)
        if reading is None:
            return
        writer = recorder.timeline()
        if writer is not None:
            writer.clock(received_ns, reading.offset_ns, reading.uncertainty_ns)
        if self._follower.adopt(reading, received_ns):
            self.links.send(0, ClockReport(reading.offset_ns))

    # What is to be done.

    def tick(self) -> None:
        """Do what is due."""
        self._face_failures()
        if self.finished:
            return
        self.alarms.sound()
        self._speak()
        if self.desk is not None:
            # Once they leave, ranks refuse what they had asked for.
            cycle_time_s = None if self.departure.under_way else self.desk.dispatch()
            if cycle_time_s is not None:
                self._cycle_time_ns = round(cycle_time_s * 1e9)
            reason = self.desk.check()
        else:
            reason = self._leader.check(self.links, self._clock_ns())
        if reason:
            self.abort(reason)
        if self.goodbye_wanted and not self.departure.said_goodbye:
            if self._follower is not None and recorder.is_timeline_on():
                self.links.send(0, self._follower.begin(self._clock_ns(), 1))
            self.departure.say_goodbye(farewell(self._rank, self._hosts[self._rank]))
        if self.departure.under_way:
            self.departure.proceed(self._executor.load, self._clock_ns())
        if self._follower is not None and recorder.is_timeline_on() and self._clock_ns() >= self._follower.next_ns:
            self.links.send(0, self._follower.begin(self._clock_ns()))

    def _face_failures(self) -> None:
        if (reason := self.failures.take_new()) is not None:
            if not reason.startswith("rank "):
                reason = f"rank {self._rank} on {self._hosts[self._rank]}: {reason}"
            if self.desk is None:
                self.links.send(0, Failed(reason))
            self._suspect(reason)
        remaining_s = self.failures.remaining_s
        if remaining_s is None or remaining_s > 0:
            return
        reason = self.failures.suspicion or ""
        if self.desk is not None:
            if self.desk.watch.asked and not self._silence_counts:
                self._silence_counts = True
                self.failures.wait_longer(SILENCE_S)
                return
            blame = self.desk.blame()
            reason = f"{reason}; {blame}" if blame else reason
        elif 0 in self.links:
            answer = f"did not answer: {NO_ANSWER}" if self._leader.is_silent else "did not report why"
            reason = f"{reason}; rank 0 on {self._hosts[0]} {answer}"
        self.abort(reason)

    def _suspect(self, reason: str) -> None:
        """An operation has failed: wait for a rank that knows the cause, and find the ranks that do not answer."""
        if self.failures.suspicion is None:
            if self.desk is not None:
                self.desk.watch.ask_all(self._clock_ns())
            else:
                self._leader.ask(self.links, self._clock_ns())
        self.failures.suspect(reason)

    def _speak(self) -> None:
        """Tell the coordinator what was submitted, if it is time."""
        if not self.tensor_table.has_unsent:
            # Cleared before the second look: a tensor that comes after it wakes the thread, one before it is seen.
            self.notified = False
            if not self.tensor_table.has_unsent:
                return
        if self.links.is_congested:
            return
        now_ns = self._clock_ns()
        if not self.due_ns:
            self.due_ns = now_ns + self._cycle_time_ns
        if now_ns < self.due_ns and not self._is_blocked():
            return
        self.due_ns = 0
        self.notified = False
        writer = recorder.timeline()
        self.tensor_table.send_times = writer is not None or self.records_elsewhere
        said = False
        while not self.links.is_congested and (ready := self.tensor_table.collect(self._executor.done)) is not None:
            said = True
            if self.desk is not None:
                self.desk.take_note(self._rank, ready)
            else:
                self.links.send(0, ready)
        if said:
            self._leader.asked(now_ns)
            if writer is not None and self.mark_cycles:
                writer.instant(CYCLE_START, now_ns)

    # The end.

    def _close_member(self, reason: str) -> None:
        entries = self.tensor_table.close(reason)
        self._completions.finish(entries, self.tensor_table.closed)
        if entries:
            _log.debug("%d tensors were still waiting when %s", len(entries), reason)

    def fail(self, reason: str, entries: Sequence[Entry] = ()) -> None:
        """What all ranks agreed on could not be done here; takes over its entries.  Called by any thread."""
        self.failures.note(reason, entries)

    def abort(self, reason: str) -> None:
        """Something is broken for good: fail everything, here and everywhere."""
        if self.finished:
            return
        if self.desk is not None:
            self.links.send_to_all(Abort(reason))
        _log.error("Horovod background loop uncaught exception: %s", reason)
        self._completions.finish(self.tensor_table.close(reason), self.tensor_table.closed)
        error = self.tensor_table.closed or reason
        self.failures.end(error)
        self._executor.abort(error)
        self.aborted = True
        self.departure.under_way = True
        self.departure.finished = True

    def end(self) -> None:
        """Nobody calls any more: whatever fails from now on fails with what is known."""
        if not self.tensor_table.closed:
            alone = self.departure.why_alone
            self._close_member(f"rank {self._rank} has shut down" + (f"; {alone}" if alone else ""))
        self.failures.end(self.tensor_table.closed or self.failures.suspicion or "the runtime has ended")
