"""A simulated rank: the real tensor table, coordinator, executor and node; training and collectives are played."""

import math
import random
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tlkit.runtime.core.config import Config
from tlkit.runtime.core.control.channel import Channel
from tlkit.runtime.core.control.coordinator import Coordinator
from tlkit.runtime.core.control.leaving import SHUTDOWN_TIMEOUT_S
from tlkit.runtime.core.control.links import Links, LostRank
from tlkit.runtime.core.control.messages import Request, Response
from tlkit.runtime.core.control.node import Node
from tlkit.runtime.core.control.tensor_table import TensorTable
from tlkit.runtime.core.errors import HorovodInternalError
from tlkit.runtime.core.executor import Executor
from tlkit.runtime.core.work import Batch, Completions, Entry, Handle

from .network import SimulatedSocket

#: Of so many reductions the values of one are sent along, by all ranks that ask for it.
_ONE_SMALL_IN = 3


@dataclass(slots=True)
class Tensor:
    """What a rank brings: not values, but which of its submissions this is."""

    nbytes: int
    occurrence: tuple[int, int] | None
    """How often this rank had joined, and how often it had asked for the name since; None for what an absent rank brings."""


@dataclass(slots=True)
class Operation:
    """An operation of the training."""

    handle: Handle
    name: str
    may_fail_with: str = ""


@dataclass(slots=True)
class Wait:
    """The training waits for operations, or polls them, or does something else for a while."""

    operations: Sequence[Operation] = ()
    blocks: bool = True
    pause_ns: int = 0


Training = Generator[Wait, None, None]


class Group:
    """A process set; which one, also if its number was another's before."""

    def __init__(self, number: int, ranks: tuple[int, ...], opened: int) -> None:
        self.number = number
        self.ranks = ranks
        self.opened = opened

    def algorithm(self, device: str, /) -> str:
        """Nothing moves."""
        return device

    def close(self) -> None:
        """Nothing to let go of."""

    def abort(self) -> None:
        """Nothing to let go of."""


class LoggingExecutor(Executor):
    """Remembers the order in which it was told to do things."""

    def __init__(self, rank: "SimulatedRank", completions: Completions) -> None:
        super().__init__(completions, rank, rank.open_group)  # type: ignore[arg-type]  # what of a binding it needs
        self._rank = rank

    def put(self, response: Response, entries: Sequence[Entry], negotiated_ns: int, *, notify: bool = True) -> None:
        """See `Executor`."""
        if response.seq >= 0:
            self._rank.log.append(
                (
                    (response.process_set, self._rank.removals[response.process_set], response.seq),
                    tuple(sorted(entry.request.name for entry in entries)),
                    response.error,
                )
            )
        super().put(response, entries, negotiated_ns, notify=notify)


def _values(request: Request, occurrence: object) -> bytes:
    """Instead of values: which time it is, as long as the tensor."""
    nbytes = 4 * math.prod(request.shape)
    return repr(occurrence).encode().ljust(nbytes)[:nbytes]


class SimulatedRank:
    """One rank, driven by the world's events."""

    def __init__(
        self,
        world: Any,
        rank: int,
        size: int,
        sockets: dict[int, SimulatedSocket],
        config: Config,
        chance: random.Random,
    ) -> None:
        """Build it; `start` sets it going."""
        self.world = world
        self.rank = rank
        self.size = size
        self.sockets = sockets
        self.chance = chance
        self.dead = False
        """Killed."""
        self.frozen_until_ns = 0
        self.log: list[tuple[tuple[int, int, int], tuple[str, ...], str]] = []
        self.removals: Counter[int] = Counter()
        self.operations: list[Operation] = []
        self.trainings: list[tuple[Training, Wait]] = []
        self.ended_with = ""
        self.meeting: Any = None
        self._joined = 0
        self._asked: Counter[tuple[int, int, int, str]] = Counter()
        self._opened = 0
        self._waiting = 0
        self._finished_ns = 0
        self.gave_up = False
        """Has ended before what was agreed on was done."""
        self._next_wake_ns = -1
        self._writing: set[int] = set()
        channels = {other: Channel(cast("Any", end)) for other, end in sockets.items()}
        self.completions = Completions()
        self.executor = LoggingExecutor(self, self.completions)
        self.executor.groups[0] = self.open_group(0, range(size))  # type: ignore[assignment]
        self.tensor_table = TensorTable(self._absent)
        coordinator = None
        if rank == 0:
            coordinator = Coordinator(
                {0: tuple(range(size))},
                fusion_threshold_nbytes=config.fusion_threshold_nbytes,
                cache_capacity=config.cache_capacity,
                combine=self._combine,
            )
        self.links = Links(channels, self._watch)
        self.node = Node(
            rank=rank,
            hosts=tuple(f"h{each}" for each in range(size)),
            links=self.links,
            tensor_table=self.tensor_table,
            coordinator=coordinator,
            executor=self.executor,
            completions=self.completions,
            config=config,
            clock_ns=lambda: world.now_ns,
            is_blocked=lambda: self._waiting > 0,
        )
        self.executor.on_failure = self.node.fail
        for end in sockets.values():
            end.on_readable = self.wake
            end.on_writable = self.wake

    # What the runtime asks of a framework.

    def open_group(self, number: int, ranks: Sequence[int]) -> Group | None:
        """See `Engine`."""
        self._opened += 1
        return Group(number, tuple(ranks), self._opened) if self.rank in ranks else None

    def execute(self, group: Group, batch: Batch) -> None:
        """See `Binding`: all members are there, or it fails."""
        self.meeting.finish(self, group, batch)
        if batch.entries[0].request.kind == "join":
            self._joined += 1

    def _combine(self, request: Request, values: Sequence[bytes]) -> bytes:
        if len(set(values)) > 1:
            self.world.fault(f"values of {request.name} of different times are one: {values}")
        return values[0]

    def put_results(self, batch: Batch) -> None:
        """See `Binding`: the result is of what this rank has asked for."""
        for entry, result in zip(batch.entries, batch.response.results, strict=True):
            if result != _values(entry.request, entry.tensor.occurrence):
                self.world.fault(f"{entry.request.name} got the result of another time: {result!r}")

    def _absent(self, request: Request) -> Entry:
        handle = Handle(lambda _: None)
        handle.remaining = 1
        return Entry(request, Tensor(4, None), None, handle, 0)

    # The training.

    def submit(self, *requests: Request, may_fail_with: str = "", hurry: bool = False) -> Operation:
        """Start an operation on one tensor or several.

        Raises:
            HorovodInternalError: the runtime has ended.
        """
        handle = Handle(lambda _: None)
        entries = []
        for request in requests:
            key = (request.process_set, self.removals[request.process_set], request.name)
            occurrence = (self._joined, self._asked[self._joined, *key])
            entry = Entry(request, Tensor(16, occurrence), None, handle, self.world.now_ns)
            if (
                request.kind == "allreduce"
                and zlib.crc32(repr((request.name, occurrence)).encode()) % _ONE_SMALL_IN == 0
            ):
                entry.values = _values(request, occurrence)
            entries.append(entry)
        handle.entries = entries
        handle.remaining = len(entries)
        self.tensor_table.submit(entries)
        for request in requests:
            self._asked[self._joined, request.process_set, self.removals[request.process_set], request.name] += 1
        if hurry:
            self.node.due_ns = 1
        operation = Operation(handle, requests[0].name, may_fail_with)
        self.operations.append(operation)
        self.world.note_operation()
        self.wake()
        return operation

    def start(self, trainings: Sequence[Training]) -> None:
        """Begin to train."""
        self.trainings = [(training, Wait()) for training in trainings]
        self.wake()

    def shut_down(self) -> None:
        """Say goodbye."""
        if not self.node.goodbye_wanted:
            self.node.goodbye_wanted = True
            self.world.after(round(SHUTDOWN_TIMEOUT_S * 1e9), self._give_up)
            self.wake()

    def _give_up(self) -> None:
        if not self.node.finished and not self.dead:
            self.gave_up = True
            self.node.departure.give_up()
            self.wake()

    def die(self) -> None:
        """Be killed: the connections end, at once or with what was under way lost."""
        self.dead = True
        for end in self.sockets.values():
            end.close()

    @property
    def is_lost(self) -> bool:
        """Whether collectives fail that need it: it has cut its connections."""
        return self.dead or self.node.aborted or self.gave_up

    @property
    def is_over(self) -> bool:
        """Whether nothing will come of it any more."""
        return self.dead or (self.node.finished and not self.executor.load and not self.trainings)

    # Events.

    def wake(self, delay_ns: int | None = None) -> None:
        """Have it look around soon."""
        at_ns = self.world.now_ns + (self.chance.randrange(500, 40_000) if delay_ns is None else delay_ns)
        at_ns = max(at_ns, self.frozen_until_ns)
        if self._next_wake_ns < 0 or at_ns < self._next_wake_ns:
            self._next_wake_ns = at_ns
            self.world.after(at_ns - self.world.now_ns, lambda: self._look(at_ns))

    def _watch(self, channel: Channel, writing: bool) -> None:
        (self._writing.add if writing else self._writing.discard)(channel.fileno())

    def _look(self, at_ns: int) -> None:
        if self.dead or at_ns != self._next_wake_ns:
            return
        self._next_wake_ns = -1
        if self.world.now_ns < self.frozen_until_ns:
            self.wake(0)
            return
        if not self.node.finished:
            self._serve()
            self._guarded(self.node.tick)
        if self.node.finished:
            self._leave()
        self._train()
        self._execute()
        if not self.node.finished and (timeout_s := self.node.timeout_s()) is not None:
            self.wake(int(timeout_s * 1e9) + 1)

    def _serve(self) -> None:
        for end in list(self.sockets.values()):
            number = end.fileno()
            if number in self._writing and end.is_writable:
                self.links.flush(number)
            while end.is_readable and not self.node.finished and self._is_connected(end):
                try:
                    rank, messages = self.links.receive(number)
                except LostRank as lost:
                    channel = self.links.drop(lost.rank)
                    if channel is not None:
                        channel.close()
                    self.node.lose(lost.rank, str(lost))
                    break
                for message in messages:
                    self._guarded(lambda rank=rank, message=message: self.node.handle(rank, message))  # type: ignore[misc]

    def _is_connected(self, end: SimulatedSocket) -> bool:
        return any(self.sockets[rank] is end for rank in self.links.ranks)

    def _guarded(self, action: Callable[[], None]) -> None:
        """As the control plane's own thread does."""
        try:
            action()
        except Exception as error:  # whatever it is, the training has to hear of it
            self.node.abort(f"rank {self.rank} on h{self.rank}: {error}")

    def _leave(self) -> None:
        """As the control plane does: the last words go out first, for as long as a second."""
        if not self._finished_ns:
            self._finished_ns = self.world.now_ns
            self.node.end()
            if self.executor.load and not self.node.aborted:
                if not self.gave_up and not self.world.something_happened:
                    self.world.fault(f"rank {self.rank} leaves before it has done what was agreed on")
                self.executor.abort(self.tensor_table.closed or "the runtime has ended")
                self.gave_up = True
        if not self.links.ranks:
            return
        for end in self.sockets.values():
            self.links.flush(end.fileno())
        if self.links.has_backlog and self.world.now_ns < self._finished_ns + 10**9:
            self.wake(10**7)
            return
        for rank in self.links.ranks:
            channel = self.links.drop(rank)
            if channel is not None:
                channel.finish()
                # Rank 0 goes on to read for a while, so that the others hear why they are left.
                self.world.after(10**9 if self.rank == 0 else 0, self._emptied(channel))

    def _emptied(self, channel: Channel) -> Callable[[], None]:
        def close() -> None:
            if self.rank == 0:
                for end in self.sockets.values():
                    if end.fileno() == channel.fileno():
                        end.discard()
            channel.close()

        return close

    def _train(self) -> None:
        going_on = []
        for training, wait in self.trainings:
            if any(operation.handle.remaining for operation in wait.operations) or wait.pause_ns > self.world.now_ns:
                going_on.append((training, wait))
                continue
            self._waiting -= wait.blocks and bool(wait.operations)
            try:
                following = next(training)
            except StopIteration:
                self.wake()
                continue
            except HorovodInternalError as error:
                self.ended_with = str(error)
                self.wake()
                continue
            self._waiting += following.blocks and bool(following.operations)
            if following.pause_ns:
                following.pause_ns += self.world.now_ns
                self.world.after(following.pause_ns - self.world.now_ns, self.wake)
            going_on.append((training, following))
            self.wake()
        self.trainings = going_on

    def _execute(self) -> None:
        batch = self.executor.take()
        if batch is None:
            return
        if batch.response.error or not batch.entries:
            self.executor.run(batch)
            self.wake()
        else:
            self.world.meet(self, self.executor.groups[batch.response.process_set], batch)

    def finish_batch(self, meeting: Any, batch: Batch) -> None:
        """The collective is over."""
        if self.dead:
            return
        self.meeting = meeting
        self.executor.run(batch)
        request = batch.entries[0].request
        if request.kind == "remove_process_set" and not batch.response.error:
            self.removals[request.shape[0]] += 1
        self.wake()
