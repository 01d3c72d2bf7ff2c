"""Negotiation, fusion, the executors of all ranks, and collectives.

A rank asks for a tensor; once a cycle its requests travel to the coordinator.  What all members of a process set have asked for
is fused and sent out, at most two batches at a time; every rank executes batches in the order in which they were sent.  A
collective begins to move bytes when its last member is there.  `Reduced` does without a coordinator, as torch.distributed does.
"""

from collections import deque
from typing import Final

from .clock import Clock, Signal
from .jobs import Job
from .plan import Plan
from .recording import Carried, Executed, RankRecording, Tensor

#: Batches under way before the coordinator holds further ones back.
MAX_UNDER_WAY: Final = 2
#: Sizes of DistributedDataParallel's buckets.
FIRST_BUCKET_NBYTES: Final = 1 << 20
BUCKET_NBYTES: Final = 25 << 20
#: What an executor needs to begin with the next batch.
_TAKE_UP_NS: Final = 15_000
_LOCAL_MESSAGE_NS: Final = 15_000

Key = tuple[int, str]


class Batch:
    """One collective, from the coordinator's decision to its end."""

    __slots__ = ("arrivals_ns", "duration_ns", "joined", "ranks", "seq", "starts_ns", "tensors")

    def __init__(self, ranks: tuple[int, ...], tensors: list[Tensor], seq: int, duration_ns: int) -> None:
        self.ranks, self.tensors, self.seq, self.duration_ns = ranks, tensors, seq, duration_ns
        self.joined: dict[int, tuple[int, int, int]] = {}
        """By rank: negotiated, begun, and the operation's start (ns)."""
        self.arrivals_ns: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


class Member:
    """What the network knows of one rank."""

    __slots__ = ("blocked_on", "executing", "is_flush_due", "queue", "recording", "submitted_ns", "unsent")

    def __init__(self, recording: RankRecording) -> None:
        self.recording = recording
        self.unsent: list[Tensor] = []
        self.is_flush_due = False
        self.submitted_ns: dict[Key, int] = {}
        """What is under way."""
        self.queue: deque[tuple[Batch, int]] = deque()
        self.executing = False
        self.blocked_on: Signal | None = None


class Network:
    """The executors of all ranks, and what a training thread calls."""

    def __init__(self, clock: Clock, plan: Plan, recordings: list[RankRecording]) -> None:
        self._clock, self._plan, self._job = clock, plan, plan.job
        self._members = [Member(recording) for recording in recordings]
        self._ranks_of = {0: tuple(range(self._job.ranks))}
        self._ranks_of |= {number + 1: ranks for number, ranks in enumerate(self._job.parts)}
        self._seqs: dict[int, int] = {}
        self._of_step: dict[int, int] = {}

    def submit(self, rank: int, tensor: Tensor) -> None:
        """A rank asks for a tensor now."""
        raise NotImplementedError

    def _hurry(self, rank: int) -> None:
        """A rank is blocked from now on."""

    def _finished(self) -> None:
        """A collective has come to its end."""

    def part_of(self, rank: int) -> int:
        """The process set of a rank beside the global one."""
        return next(number for number, ranks in self._ranks_of.items() if number and rank in ranks)

    def drained(self, rank: int) -> Signal:
        """Given when all that the rank has submitted is done; the rank is blocked until then."""
        member = self._members[rank]
        signal = Signal()
        if not member.submitted_ns:
            signal.given = True
            return signal
        member.blocked_on = signal
        self._hurry(rank)
        return signal

    def new_batch(self, process_set: int, tensors: list[Tensor]) -> Batch:
        """The next collective of a process set."""
        seq = self._seqs.get(process_set, 0)
        self._seqs[process_set] = seq + 1
        step = tensors[0].step
        number = self._of_step.get(step, 0)
        self._of_step[step] = number + 1
        ranks = self._ranks_of[process_set]
        nbytes = sum(tensor.nbytes for tensor in tensors)
        wire_ns = nbytes * 2 * (len(ranks) - 1) / len(ranks) / self._job.bytes_per_ns
        factor = self._plan.wire[step, number % self._plan.wire.shape[1]]
        return Batch(ranks, tensors, seq, int((self._job.latency_ns + wire_ns) * factor))

    # On the ranks.

    def enqueue(self, rank: int, batch: Batch) -> None:
        """A rank learns that it is to execute a batch."""
        self._members[rank].queue.append((batch, self._clock.now_ns))
        self._take_up(rank)

    def _take_up(self, rank: int) -> None:
        member = self._members[rank]
        if member.executing or not member.queue:
            return
        member.executing = True
        batch, negotiated_ns = member.queue.popleft()
        begun_ns = self._clock.now_ns + _TAKE_UP_NS
        self._clock.call_at(begun_ns + self._copy_ns(batch), self._join, rank, batch, negotiated_ns, begun_ns)

    def _copy_ns(self, batch: Batch) -> int:
        return int(batch.nbytes / self._job.copy_bytes_per_ns) if len(batch.tensors) > 1 else 0

    def _join(self, rank: int, batch: Batch, negotiated_ns: int, begun_ns: int) -> None:
        batch.joined[rank] = negotiated_ns, begun_ns, self._clock.now_ns
        if len(batch.joined) == len(batch.ranks):
            self._clock.call_at(self._clock.now_ns + batch.duration_ns, self._finish, batch)

    def _finish(self, batch: Batch) -> None:
        for rank in batch.ranks:
            self._clock.call_at(
                self._clock.now_ns + self._copy_ns(batch), self._complete, rank, batch, self._clock.now_ns
            )
        self._finished()

    def _complete(self, rank: int, batch: Batch, moved_ns: int) -> None:
        member = self._members[rank]
        process_set = batch.tensors[0].process_set
        carried = [Carried(tensor, member.submitted_ns.pop((process_set, tensor.name))) for tensor in batch.tensors]
        negotiated_ns, begun_ns, started_ns = batch.joined[rank]
        member.recording.executed.append(
            Executed(
                batch.seq,
                process_set,
                batch.ranks,
                batch.tensors[0].kind,
                carried,
                negotiated_ns,
                begun_ns,
                (started_ns, moved_ns),
                self._clock.now_ns,
                tuple(batch.arrivals_ns[member] for member in batch.ranks),
            )
        )
        member.executing = False
        if not member.submitted_ns and member.blocked_on is not None:
            signal, member.blocked_on = member.blocked_on, None
            self._clock.give(signal)
        self._take_up(rank)


class Coordinated(Network):
    """Horovod's way: a coordinator fuses what all have asked for."""

    def __init__(self, clock: Clock, plan: Plan, recordings: list[RankRecording]) -> None:
        super().__init__(clock, plan, recordings)
        self._asked: dict[Key, dict[int, int]] = {}
        self._ready: deque[Tensor] = deque()
        self._under_way = 0

    # What a training thread calls.

    def submit(self, rank: int, tensor: Tensor) -> None:
        """A rank asks for a tensor now."""
        member = self._members[rank]
        member.submitted_ns[tensor.process_set, tensor.name] = self._clock.now_ns
        member.unsent.append(tensor)
        if member.blocked_on is not None and self._job.is_eager:
            self._flush(rank)
        elif not member.is_flush_due:
            member.is_flush_due = True
            cycle_ns = self._job.cycle_ns
            due_ns = self._clock.now_ns + cycle_ns
            if not self._job.is_eager:  # cycles go on, whether there is something to ask for or not
                due_ns = (self._clock.now_ns // cycle_ns + 1) * cycle_ns
            self._clock.call_at(due_ns, self._flush, rank)

    def _hurry(self, rank: int) -> None:
        if self._job.is_eager:
            self._flush(rank)

    def _finished(self) -> None:
        self._under_way -= 1
        self._dispatch()

    # Between ranks and coordinator.

    def _message_ns(self, rank: int) -> int:
        return self._job.message_ns if rank else _LOCAL_MESSAGE_NS

    def _flush(self, rank: int) -> None:
        member = self._members[rank]
        member.is_flush_due = False
        if member.unsent:
            tensors, member.unsent = member.unsent, []
            self._clock.call_at(self._clock.now_ns + self._message_ns(rank), self._receive, rank, tensors)

    def _receive(self, rank: int, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            key = tensor.process_set, tensor.name
            asked = self._asked.setdefault(key, {})
            asked[rank] = self._members[rank].submitted_ns[key]
            if len(asked) == len(self._ranks_of[tensor.process_set]):
                self._ready.append(tensor)
        self._dispatch()

    def _dispatch(self) -> None:
        while self._ready and self._under_way < MAX_UNDER_WAY:
            seed = self._ready.popleft()
            tensors, nbytes, rest = [seed], seed.nbytes, deque[Tensor]()
            while self._ready:
                tensor = self._ready.popleft()
                fits = nbytes + tensor.nbytes <= self._job.threshold_nbytes and seed.kind == "allreduce"
                if fits and (tensor.kind, tensor.process_set) == (seed.kind, seed.process_set):
                    tensors.append(tensor)
                    nbytes += tensor.nbytes
                else:
                    rest.append(tensor)
            self._ready = rest
            self._send(tensors)

    def _send(self, tensors: list[Tensor]) -> None:
        process_set = tensors[0].process_set
        batch = self.new_batch(process_set, tensors)
        arrivals = [self._asked.pop((process_set, tensor.name)) for tensor in tensors]
        batch.arrivals_ns = {rank: max(asked[rank] for asked in arrivals) for rank in batch.ranks}
        self._under_way += 1
        for rank in batch.ranks:
            self._clock.call_at(self._clock.now_ns + self._message_ns(rank), self.enqueue, rank, batch)


class Reduced(Network):
    """The way of DistributedDataParallel: buckets of gradients, in the same order on every rank."""

    def __init__(self, clock: Clock, plan: Plan, recordings: list[RankRecording]) -> None:
        super().__init__(clock, plan, recordings)
        self._batches: list[Batch] = []
        self._begun = [0] * len(recordings)
        self._bucket_ends = bucket_ends(plan.job)

    def submit(self, rank: int, tensor: Tensor) -> None:
        """A gradient waits for the rest of its bucket; what user code reduces goes at once."""
        member = self._members[rank]
        member.submitted_ns[tensor.process_set, tensor.name] = self._clock.now_ns
        member.unsent.append(tensor)
        if tensor.name not in self._bucket_ends and tensor.is_gradient:
            return
        tensors, member.unsent = member.unsent, []
        number = self._begun[rank]
        self._begun[rank] += 1
        if number == len(self._batches):
            self._batches.append(self.new_batch(tensor.process_set, tensors))
        batch = self._batches[number]
        batch.arrivals_ns[rank] = self._clock.now_ns
        self.enqueue(rank, batch)


def bucket_ends(job: Job) -> set[str]:
    """The gradients that complete a bucket, the last one of all included."""
    ends, nbytes, limit = set(), 0, min(FIRST_BUCKET_NBYTES, job.threshold_nbytes)
    for layer in reversed(job.layers):
        nbytes += layer.nbytes
        if nbytes >= limit or layer is job.layers[0]:
            ends.add(f"allreduce.{layer.name}")
            nbytes, limit = 0, min(BUCKET_NBYTES, job.threshold_nbytes)
    return ends
