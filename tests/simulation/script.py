"""What simulated trainings do: `same` is random, alike on all ranks, and says what; `own` is each rank's, and says when."""

import random
from collections.abc import Callable
from typing import Final

from tlkit.runtime.core.control.messages import Request
from tlkit.runtime.core.errors import HorovodInternalError
from tlkit.runtime.core.kinds import Kind
from tlkit.runtime.core.operations import ReduceOp

from .rank import Operation, SimulatedRank, Training, Wait

_NAMES: Final = tuple("abcdefgh")


def request(
    name: str, kind: str = "allreduce", shape: tuple[int, ...] = (4,), *, priority: int = 0, process_set: int = 0
) -> Request:
    """One rank asks for a collective."""
    sets = {"add_process_set", "remove_process_set", "join"}
    return Request(
        name=f"{kind}.{name}",
        kind=Kind(kind),
        dtype="uint8" if kind in sets else "float32",
        shape=shape,
        op=int(ReduceOp.SUM),
        process_set=process_set,
        priority=priority,
    )


class Script:
    """A training of one rank."""

    def __init__(self, rank: SimulatedRank, seed: str, steps: int) -> None:
        """Write it.

        Args:
            seed: the job's.
            steps: how many things it does.
        """
        self._rank = rank
        self._same = random.Random(f"{seed} same")
        self._own = random.Random(f"{seed} own {rank.rank}")
        self._steps = steps
        self._open: dict[tuple[int, str], Operation] = {}
        """Operations that were started and not waited for."""
        self._sets: list[tuple[int, tuple[int, ...]]] = []
        self._unnamed = 0

    def train(self) -> Training:
        """Everything, and the end."""
        same = self._same
        acts: list[Callable[[], Training]] = [
            self._many, self._many, self._many, self._blocking, self._blocking, self._changed, self._mismatched,
            self._uneven, self._add, self._remove, self._in_sets, self._in_sets, self._left, self._gathered,
        ]  # fmt: skip
        for _ in range(self._steps):
            act = same.choice(acts)
            yield from self._nap()
            yield from act()
        yield from self._finish_open()
        end = same.choice(["barrier", "barrier", "barrier", "one", "together"])
        first = same.randrange(self._rank.size)
        if end == "barrier" or (end == "one" and self._rank.rank != first):
            yield from self._wait([self._rank.submit(request("end", "barrier", ()))])
        yield from self._nap()
        self._rank.world.end_with(f"rank {self._rank.rank} has shut down")
        self._rank.shut_down()

    def wait_beside(self) -> Training:
        """A second thread, which waits for something that the others ask for late."""
        operation = self._rank.submit(request("beside"))
        if self._rank.rank:
            yield Wait([operation])
        else:
            yield Wait(pause_ns=self._own.randrange(10**9))
            yield Wait([operation])

    # What it does.

    def _nap(self) -> Training:
        if self._own.random() < 0.3:
            yield Wait(pause_ns=int(self._own.random() * self._own.choice([1e5, 1e6, 1e7, 1e8])))

    def _wait(self, operations: list[Operation]) -> Training:
        """Wait for operations, or poll them; they end as they should."""
        yield Wait(operations, blocks=self._own.random() < 0.8)
        for operation in operations:
            error = operation.handle.error
            if error is None:
                if operation.may_fail_with.endswith("!"):
                    self._rank.world.fault(f"rank {self._rank.rank}: {operation.name} should have failed")
            elif not operation.may_fail_with or operation.may_fail_with.rstrip("!") not in error:
                raise HorovodInternalError(error)

    def _finish_open(self, *names: tuple[int, str]) -> Training:
        wanted = [key for key in self._open if not names or key in names]
        self._own.shuffle(wanted)
        for key in wanted:
            yield from self._wait([self._open.pop(key)])

    def _submit(self, asked: Request, may_fail_with: str = "") -> Training:
        """Start an operation, once the last of its name is over; now and then wait at once."""
        key = (asked.process_set, asked.name)
        if key in self._open:
            yield from self._finish_open(key)
        self._open[key] = self._rank.submit(asked, may_fail_with=may_fail_with, hurry=self._own.random() < 0.2)

    def _many(self) -> Training:
        same, own = self._same, self._own
        names = same.sample(_NAMES, same.randint(1, len(_NAMES)))
        priorities = {name: same.choice([0, 0, 0, 1]) for name in names}
        waits = same.random() < 0.6
        if own.random() < 0.5:
            own.shuffle(names)
        for name in names:
            yield from self._submit(request(name, priority=priorities[name]))
            if own.random() < 0.1:
                yield from self._nap()
        if waits:
            yield from self._finish_open(*((0, f"allreduce.{name}") for name in names))

    def _blocking(self) -> Training:
        name = self._same.choice(_NAMES)
        if self._same.random() < 0.3:
            self._unnamed += 1
            name = f"noname.{self._unnamed}"
        yield from self._submit(request(name))
        yield from self._finish_open((0, f"allreduce.{name}"))

    def _gathered(self) -> Training:
        name = self._same.choice(_NAMES)
        rows = self._own.randint(1, 3)
        yield from self._submit(request(name, "allgather", (rows, 2)))
        if self._same.random() < 0.5:
            yield from self._finish_open((0, f"allgather.{name}"))

    def _changed(self) -> Training:
        """A tensor looks different from now on, or once."""
        name = self._same.choice(_NAMES)
        yield from self._submit(request(name, shape=(self._same.randint(1, 9),)))

    def _mismatched(self) -> Training:
        """Somebody is wrong, and everybody hears of it."""
        wrong = self._same.randrange(self._rank.size)
        name = self._same.choice(_NAMES)
        shape = (3,) if self._rank.rank == wrong else (4,)
        fails = "Mismatched!" if self._rank.size > 1 else ""
        yield from self._submit(request(name, shape=shape), fails)

    def _uneven(self) -> Training:
        """The ranks have different numbers of batches, and join."""
        yield from self._finish_open()
        counts = [self._same.randint(0, 4) for _ in range(self._rank.size)]
        kinds = [self._same.choice("ab") for _ in range(max(counts))]
        last = self._same.random() < 0.5
        for number in range(counts[self._rank.rank]):
            name = f"{kinds[number]}{number % 2}"
            yield from self._submit(request(name))
            if self._own.random() < 0.5:
                yield from self._finish_open((0, f"allreduce.{name}"))
        if not last:
            yield from self._finish_open()
        yield from self._wait([self._rank.submit(request("noname", "join", ()))])
        yield from self._finish_open()

    def _add(self) -> Training:
        size = self._rank.size
        members = tuple(sorted(self._same.sample(range(size), self._same.randint(1, size))))
        if len(members) == size or any(ranks == members for _, ranks in self._sets):
            return
        operation = self._rank.submit(request("set", "add_process_set", members))
        yield from self._wait([operation])
        self._sets.append((operation.handle.entries[0].extra, members))

    def _remove(self) -> Training:
        if not self._sets:
            return
        number, members = self._sets.pop(self._same.randrange(len(self._sets)))
        known = self._same.random() < 0.5
        if known and self._rank.rank in members:
            for name in _NAMES:
                yield from self._submit(request(name, process_set=number))
            yield from self._finish_open()
        for name in self._same.sample(_NAMES, 2):
            # Members who ask before they remove the set are answered, if all of them ask; else they hear that it is gone.
            asking = self._same.sample(members, self._same.randint(1, len(members)))
            if self._rank.rank in asking:
                fails = "" if len(asking) == len(members) else "Process set has been removed"
                yield from self._submit(request(name, process_set=number), fails)
                if self._own.random() < 0.3:
                    yield from self._nap()
        removal = self._rank.submit(request("set", "remove_process_set", (number,)))
        if self._rank.rank in members and self._own.random() < 0.3:
            # Another thread does not know of it.
            yield from self._nap()
            late = request(self._own.choice(_NAMES), process_set=number)
            if removal.handle.remaining and (number, late.name) not in self._open:
                self._open[number, late.name] = self._rank.submit(late, may_fail_with="Process set has been removed")
        yield from self._wait([removal])
        yield from self._finish_open(*(key for key in list(self._open) if key[0] == number), (number, ""))

    def _in_sets(self) -> Training:
        """Sets that overlap, some ranks in several, each in an order of its own."""
        chosen = [(each, self._same.choice(_NAMES)) for each in self._sets if self._same.random() < 0.7]
        self._own.shuffle(chosen)
        for (number, members), name in chosen:
            if self._rank.rank in members:
                yield from self._submit(request(name, process_set=number))
        if self._same.random() < 0.5:
            yield from self._finish_open()

    def _left(self) -> Training:
        """Nobody waits for it before something of the same name comes."""
        yield from self._submit(request(self._same.choice(_NAMES)))
