"""A job whose network, clock, faults and trainings come from one seed, and what must hold whatever happens."""

import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tlkit.runtime.core.config import Config
from tlkit.runtime.core.control import response_cache
from tlkit.runtime.core.work import Batch

from .network import SimulatedSocket, connect
from .rank import Group, SimulatedRank
from .script import Script

#: Nothing takes longer, unless it hangs.
_LONGEST_NS = 600 * 10**9
_MAX_EVENTS = 400_000

#: From the seed of a job to that of the one after it.
_NEXT_ROUND = 10**9


class Events:
    """What happens when, for all jobs that share a time."""

    def __init__(self) -> None:
        """Begin with nothing planned."""
        self.now_ns = 10**9
        self._planned: list[tuple[int, int, Callable[[], None]]] = []
        self._counter = itertools.count()

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._planned, (self.now_ns + max(delay_ns, 0), next(self._counter), action))

    def step(self) -> bool:
        """Let the next thing happen; whether there was one."""
        if not self._planned:
            return False
        self.now_ns, _, action = heapq.heappop(self._planned)
        action()
        return True


class BrokenPromise(AssertionError):
    """Something that must hold does not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What a seed stands for."""

    seed: int
    size: int
    capacity: int
    threshold_nbytes: int
    cycle_time_s: float
    steps: int
    fault: str
    slowness_ns: int
    window_nbytes: int
    patience: int
    """How long a number is kept that nobody asks for."""
    frozen_ns: int = _LONGEST_NS
    """How long a rank that freezes is stopped."""

    @staticmethod
    def of(seed: int, *, fault: str | None = None, capacity: int | None = None) -> "Case":
        """The case of a seed.

        Args:
            fault: another than the seed's.
            capacity: of the cache, another than the seed's.
        """
        chance = random.Random(f"case {seed}")
        size = chance.choice([2, 2, 3, 3, 4, 4, 5, 8]) if chance.random() < 0.99 else chance.choice([16, 64])
        drawn = chance.choice([0, 1, 3, 8, 64])
        chosen = chance.choice(["", "", "", "kill", "kill", "cut", "repeat", "pause", "freeze", "leave", "leave"])
        return Case(
            seed=seed,
            size=size,
            capacity=drawn if capacity is None else capacity,
            threshold_nbytes=chance.choice([0, 40, 64, 1 << 20]),
            cycle_time_s=chance.choice([0.0, 0.001, 0.02]),
            steps=chance.choice([2, 6, 12, 30]) if size < 16 else 3,
            fault=chosen if fault is None else fault,
            slowness_ns=chance.choice([50_000, 10**6, 5 * 10**7]),
            patience=chance.choice([0, 0, 4]),
            window_nbytes=1 << 16 if fault == "" else chance.choice([50, 300, 1 << 16]),
        )


class Meeting:
    """A collective: its members come one by one, and leave when all have come."""

    def __init__(self, world: "World", key: tuple[int, int], group: Group) -> None:
        self._world = world
        self._key = key
        self._group = group
        self._there: dict[int, tuple[SimulatedRank, Batch]] = {}
        self._failed = ""

    def join(self, rank: SimulatedRank, batch: Batch) -> None:
        """A member has come."""
        self._there[rank.rank] = rank, batch
        if self._failed or self.has_lost_a_member():
            self.fail()
        elif len(self._there) == len(self._group.ranks):
            self._check()
            for member, its_batch in self._there.values():
                self._leave(member, its_batch)
            self._there = {}

    def has_lost_a_member(self) -> bool:
        """Whether somebody who has to come is dead, or has given up."""
        ranks = self._world.ranks
        return any(ranks[rank].is_lost for rank in self._group.ranks)

    def fail(self) -> None:
        """Somebody will never come."""
        self._failed = "connection closed by peer"
        there, self._there = self._there, {}
        for member, batch in there.values():
            self._leave(member, batch)

    def _leave(self, member: SimulatedRank, batch: Batch) -> None:
        delay_ns = int(self._world.chance_of(member).random() ** 4 * 3e7)
        self._world.after(delay_ns, lambda: member.finish_batch(self, batch))

    def finish(self, rank: SimulatedRank, group: Group, batch: Batch) -> None:
        """What a binding does: it works, or it raises."""
        del rank, group, batch
        if self._failed:
            raise ConnectionError(self._failed)

    def _check(self) -> None:
        """All members do the same, each with what it has asked for the same number of times."""
        members = sorted(self._there.items())
        names = {tuple(entry.request.name for entry in batch.entries) for _, (_, batch) in members}
        if len(names) > 1:
            self._world.fault(f"batch {self._key} is not the same on all ranks: {names}")
        for tensors in zip(*(batch.entries for _, (_, batch) in members), strict=True):
            occurrences = {entry.tensor.occurrence for entry in tensors} - {None}
            if len(occurrences) > 1 and tensors[0].request.kind != "join":
                self._world.fault(f"{tensors[0].request.name} of different times are one: {occurrences}")
            if (
                len({(entry.request.shape, entry.request.op) for entry in tensors}) > 1
                and tensors[0].request.kind == "allreduce"
            ):
                self._world.fault(f"{tensors[0].request.name} is not of one shape")


class World:
    """One job from `init` to `shutdown`."""

    def __init__(self, case: Case, events: Events | None = None) -> None:
        """Build its ranks.

        Args:
            events: of the jobs before it; None for a time of its own.
        """
        self.case = case
        self.events = Events() if events is None else events
        self.ranks: list[SimulatedRank] = []
        self._steps = 0
        self._last_ns = self.now_ns + _LONGEST_NS
        self._meetings: dict[tuple[int, int], Meeting] = {}
        self._faults: list[str] = []
        self._causes: list[str] = []
        self._fault_at = 0
        self._action: Callable[[], None] | None = None
        self._chance = random.Random(f"{case.seed} faults")
        self._gone = 0
        config = Config(
            fusion_threshold_nbytes=case.threshold_nbytes,
            cycle_time_s=case.cycle_time_s,
            cache_capacity=case.capacity,
            stall_warning_s=5.0,
            stall_shutdown_s=30.0,
        )
        ends: dict[int, dict[int, SimulatedSocket]] = {rank: {} for rank in range(case.size)}
        for rank in range(1, case.size):
            near, far = connect(f"{case.seed} {rank}", self.after, lambda: self.now_ns)
            ends[0][rank], ends[rank][0] = near, far
            for end in (near, far):
                end.slowness_ns = case.slowness_ns
                end.window_nbytes = case.window_nbytes
        for rank in range(case.size):
            chance = random.Random(f"{case.seed} rank {rank}")
            self.ranks.append(SimulatedRank(self, rank, case.size, ends[rank], config, chance))

    # For the ranks.

    @property
    def now_ns(self) -> int:
        """The time."""
        return self.events.now_ns

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Do something later."""
        self.events.after(delay_ns, action)

    def chance_of(self, rank: SimulatedRank) -> random.Random:
        """A rank's own chances."""
        return rank.chance

    def meet(self, rank: SimulatedRank, group: Any, batch: Batch) -> None:
        """A rank has come to a collective."""
        key = (group.opened, batch.response.seq)
        meeting = self._meetings.get(key)
        if meeting is None:
            meeting = self._meetings[key] = Meeting(self, key, group)
        meeting.join(rank, batch)

    def end_with(self, cause: str) -> None:
        """From now on operations may fail, for this reason."""
        self._causes.append(cause)

    @property
    def something_happened(self) -> bool:
        """Whether a rank may be gone, or stopped."""
        return bool(self.case.fault) and self.case.fault != "leave"

    def fault(self, what: str) -> None:
        """Something is wrong."""
        self._faults.append(what)

    # The run.

    def run(self) -> list[list[Any]]:
        """From the start to the end; returns what each rank was told to do.

        Raises:
            BrokenPromise: something that must hold does not.
        """
        with patience(self.case.patience):
            self.begin()
            while not self.is_over and self.events.step():
                self.look()
            self.judge()
        return [rank.log for rank in self.ranks]

    def begin(self) -> None:
        """Have all ranks train."""
        for rank in self.ranks:
            script = Script(rank, str(self.case.seed), self.case.steps)
            trainings = [script.train()]
            if self.case.seed % 5 == 0:
                trainings.append(script.wait_beside())
            rank.start(trainings)
        self._plan_fault()

    def look(self) -> None:
        """Something has happened."""
        self._lose_members()
        self._steps += 1
        if self._steps > _MAX_EVENTS:
            self.fault("it never comes to an end")

    @property
    def is_broken(self) -> bool:
        """Whether something is wrong."""
        return bool(self._faults)

    @property
    def is_over(self) -> bool:
        """Whether nothing will come of it any more, but for ranks that are stopped."""
        return bool(
            self._faults
            or self.now_ns > self._last_ns
            or all(rank.is_over or rank.frozen_until_ns > self.now_ns for rank in self.ranks)
        )

    def _lose_members(self) -> None:
        """Collectives of ranks that are gone fail, a while later."""
        gone = sum(rank.is_lost for rank in self.ranks)
        if gone != self._gone:
            self._gone = gone
            for meeting in self._meetings.values():
                if meeting.has_lost_a_member():
                    self.after(self._chance.randrange(10**6, 4 * 10**8), meeting.fail)

    def _plan_fault(self) -> None:
        chance = self._chance
        # When so many operations were submitted; later than all if the number is too large.
        self._fault_at = int(chance.random() * 3 * self.case.steps * self.case.size)
        victim = self.ranks[chance.randrange(self.case.size)]
        other = self.ranks[chance.randrange(1, self.case.size)]
        kind = self.case.fault
        actions = {
            "kill": lambda: self._kill(victim),
            "cut": lambda: self._cut(other),
            "repeat": lambda: self._repeat(chance.choice([other.sockets[0], self.ranks[0].sockets[other.rank]]), other),
            "pause": lambda: self._freeze(victim, chance.randrange(10**7, 3 * 10**9)),
            "freeze": lambda: self._freeze(victim, self.case.frozen_ns),
            "leave": lambda: self._leave(victim),
        }
        self._action = actions.get(kind)
        if kind == "kill" and chance.random() < 0.2:

            def kill_both() -> None:
                self._kill(victim)
                self.after(chance.randrange(10**8), lambda: self._kill(other))

            self._action = kill_both

    def note_operation(self) -> None:
        """A rank has submitted something; now and then something happens to a rank."""
        self._fault_at -= 1
        if self._fault_at <= 0 and self._action is not None:
            action, self._action = self._action, None
            self.after(self._chance.randrange(10**6), action)

    def _kill(self, victim: SimulatedRank) -> None:
        self.end_with(f"rank {victim.rank} on h{victim.rank} is gone")
        victim.die()

    def _cut(self, other: SimulatedRank) -> None:
        self.end_with(f"rank {other.rank} on h{other.rank} is gone")
        self.end_with("rank 0 on h0 is gone")
        other.sockets[0].cut()

    def _repeat(self, end: SimulatedSocket, other: SimulatedRank) -> None:
        self.end_with(f"rank {other.rank} on h{other.rank} is gone")
        self.end_with("rank 0 on h0 is gone")
        end.repeats_next = True

    def _freeze(self, victim: SimulatedRank, for_ns: int) -> None:
        self.end_with(f"rank {victim.rank} on h{victim.rank}")
        self.end_with(f"ranks [{victim.rank}] did not submit")
        victim.frozen_until_ns = self.now_ns + for_ns

    def _leave(self, victim: SimulatedRank) -> None:
        self.end_with(f"rank {victim.rank} has shut down")
        victim.shut_down()

    # What must hold.

    def judge(self) -> None:
        """Say what does not hold.

        Raises:
            BrokenPromise: there is something.
        """
        faults = self._faults
        for rank in self.ranks:
            if rank.dead or rank.frozen_until_ns > self.now_ns:
                continue
            if rank.node.aborted and not self.something_happened and not faults:
                faults.append(f"rank {rank.rank} aborts: {rank.tensor_table.closed}")
            if not rank.node.finished:
                faults.append(f"rank {rank.rank} is left behind")
            for operation in rank.operations:
                if operation.handle.remaining:
                    faults.append(f"{operation.name} of rank {rank.rank} never ends")
                    break
                self._judge_error(rank, operation.name, operation.handle.error, operation.may_fail_with)
            if rank.trainings:
                faults.append(f"the training of rank {rank.rank} never ends")
            if rank.ended_with:
                self._judge_error(rank, "the training", rank.ended_with, "")
        self._judge_order()
        if faults:
            raise BrokenPromise(f"{self.case}: {'; '.join(faults[:5])}")

    def _judge_error(self, rank: SimulatedRank, name: str, error: str | None, may_fail_with: str) -> None:
        if error is None or (may_fail_with and may_fail_with.rstrip("!") in error):
            return
        if self.case.fault == "freeze" and rank.frozen_until_ns and " is gone: " in error:
            return  # it goes on after the others have left, and what they said last may not have got through
        if not any(cause in error for cause in self._causes):
            self._faults.append(f"{name} of rank {rank.rank} failed without a known cause: {error}")

    def _judge_order(self) -> None:
        """The same batches in the same order, as far as two ranks share them."""
        for one, other in itertools.pairwise(self.ranks):
            told = [
                {key: (number, names, error) for number, (key, names, error) in enumerate(rank.log)}
                for rank in (one, other)
            ]
            shared = [key for key in told[0] if key in told[1]]
            places = [told[1][key][0] for key in shared]
            if places != sorted(places):
                self._faults.append(f"ranks {one.rank} and {other.rank} are told different orders")
            for key in shared:
                (_, names, error), (_, other_names, other_error) = told[0][key], told[1][key]
                if error != other_error or (not error and names != other_names):
                    self._faults.append(f"batch {key} is {names} {error!r} and {other_names} {other_error!r}")
                    break


@contextmanager
def patience(steps: int) -> Iterator[None]:
    """How long a number is kept that nobody asks for; the usual time is too much for a short life."""
    usual = response_cache._PATIENCE
    response_cache._PATIENCE = steps  # type: ignore[misc]
    try:
        yield
    finally:
        response_cache._PATIENCE = usual  # type: ignore[misc]


def run_rounds(seed: int) -> int:
    """Jobs one after the other, as a training that shuts down and begins again, or loses ranks and meets anew with those left.

    What is left of a job goes on while the next one runs: messages under way, connections that close, and ranks that were
    stopped, which were left behind and have to find out.

    Returns:
        How many there were.

    Raises:
        BrokenPromise: something that must hold does not.
    """
    chance = random.Random(f"rounds {seed}")
    events, worlds = Events(), list[World]()
    size = 0
    with patience(chance.choice([0, 0, 4])):
        for number in range(chance.choice([2, 2, 3, 4])):
            case = Case.of(seed + number * _NEXT_ROUND)
            size = size or min(case.size, 8)
            case = replace(case, size=size, steps=min(case.steps, 12), frozen_ns=chance.randrange(40, 200) * 10**9)
            world = World(case, events)
            worlds.append(world)
            world.begin()
            while not world.is_over and events.step():
                for each in worlds:
                    each.look()
            if any(each.is_broken for each in worlds):
                break
            lost = sum(rank.dead or rank.frozen_until_ns > events.now_ns for rank in world.ranks)
            # As many new ones come as the launcher finds places for.
            size = max(2, size - chance.randint(0, lost) + chance.choice([0, 0, 0, 1]))
        last_ns = events.now_ns + _LONGEST_NS
        while not all(rank.is_over for world in worlds for rank in world.ranks) and events.now_ns < last_ns:
            if any(each.is_broken for each in worlds) or not events.step():
                break
            for each in worlds:
                each.look()
        for world in worlds:
            world.judge()
    return len(worlds)


def run_seed(seed: int) -> None:
    """Run the job of a seed, of every fourth a quiet one with and without a cache, of every third several jobs in a row.

    Raises:
        BrokenPromise: something that must hold does not; says how to run the seed again.
    """
    try:
        World(Case.of(seed)).run()
        if seed % 4 == 0:
            without, with_cache = (World(Case.of(seed, fault="", capacity=capacity)).run() for capacity in (0, 1 << 16))
            if without != with_cache:
                raise BrokenPromise("the cache changes the batches")
        if seed % 3 == 0:
            run_rounds(seed)
    except BrokenPromise as error:
        raise BrokenPromise(f"python benchmarks/protocol.py --seed {seed}: {error}") from error
