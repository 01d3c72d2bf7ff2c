"""The coordinator's mind: what is complete, and in which order it is executed.

A state machine without sockets, threads or clocks of its own: times come in with the messages, so that tests replay any
order of events.  One coordinator (on global rank 0) serves all process sets, each with a ledger of its own, and gives all of
them one order, so that ranks which are in several sets cannot wait for each other in a circle.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from ..kinds import Kind
from .ledger import Ledger, Stalled
from .messages import Ready, Request, Response, Work, from_ranges
from .receipts import Receipts
from .submission_times import times_of
from .values import Combine

#: Characters of names, and bytes of results, in a message.
_LONG_WORK: Final = 1 << 24

REMOVED: Final = "Process set has been removed"


@dataclass(frozen=True, slots=True)
class Orders:
    """What is to be done, each with the ranks that shall do it, in the order for all of them."""

    responses: list[tuple[tuple[int, ...], Response]]
    forgotten: dict[int, list[int]]
    """Ids that are no longer valid, by process set."""


class Coordinator:
    """Collects requests of all ranks and answers with batches to execute."""

    def __init__(
        self,
        process_sets: Mapping[int, Sequence[int]],
        *,
        fusion_threshold_nbytes: int,
        cache_capacity: int,
        combine: Combine | None = None,
    ) -> None:
        """Serve `process_sets`, given as id to global ranks; 0 is the global one.

        Args:
            combine: reduces small tensors, whose values come with the requests; None to leave all to transports.
        """
        self._combine = combine
        self._capacity = cache_capacity
        self._threshold_nbytes = fusion_threshold_nbytes
        self._ledgers: dict[int, Ledger] = {}
        self._removed: dict[int, Ledger] = {}
        """Process sets that are gone, until all ranks have heard of it; their numbers are not given again before."""
        self._leaving: set[int] = set()
        """Those of them of which the ranks were told."""
        self._leftover: list[tuple[tuple[int, ...], Response]] = []
        self.receipts = Receipts()
        """What each rank was told to do, and has done."""
        for number, ranks in process_sets.items():
            self._open(number, ranks)

    def _open(self, number: int, ranks: Sequence[int]) -> None:
        self._ledgers[number] = Ledger(
            number,
            ranks,
            cache_capacity=self._capacity,
            admit=None if number else self._admit,
            combine=self._combine,
        )

    @property
    def fusion_threshold_nbytes(self) -> int:
        """Most bytes in a batch of more than one tensor."""
        return self._threshold_nbytes

    @fusion_threshold_nbytes.setter
    def fusion_threshold_nbytes(self, nbytes: int) -> None:
        self._threshold_nbytes = nbytes
        for ledger in list(self._ledgers.values()):
            ledger.forget_plans()

    @property
    def has_ready(self) -> bool:
        """Whether a batch could be sent."""
        return bool(self._leftover) or any(ledger.has_ready for ledger in list(self._ledgers.values()))

    @property
    def ready_nbytes(self) -> int:
        """Bytes of what could be sent."""
        return sum(ledger.ready_nbytes for ledger in list(self._ledgers.values()))

    @property
    def is_full(self) -> bool:
        """Whether what is ready fills a fusion buffer, so that waiting for more gains nothing."""
        return self.ready_nbytes >= self._threshold_nbytes

    @property
    def is_idle(self) -> bool:
        """Whether no rank waits for anything."""
        return all(ledger.is_idle for ledger in list(self._ledgers.values()))

    def ranks_of(self, process_set: int) -> tuple[int, ...]:
        """Global ranks of a process set."""
        return self._ledgers[process_set].ranks

    def receive(self, rank: int, message: Ready, offset_ns: int, now_ns: int) -> None:
        """Take note of what `rank` is ready for.

        Args:
            offset_ns: what to add to that rank's clock to get the coordinator's.
            now_ns: the coordinator's clock.

        Raises:
            ValueError: the rank asks for a process set that it is not in, or twice for the same.
        """
        self.receipts.note(rank, message.done)
        counts = {number: sum(ranges[1::2]) for number, ranges in message.known.items()}
        position = len(message.fresh)
        times = times_of(message.times, offset_ns, position + sum(counts.values()))
        for number, ranges in message.known.items():
            count = counts[number]
            part = None if times is None else times[position : position + count]
            position += count
            ledger = self._ledgers.get(number)
            if ledger is not None:
                self._check_member(rank, ledger)
                if message.values:
                    ids = from_ranges(ranges)
                    own = {ids[place]: message.values.get(position - count + place) for place in range(count)}
                    ledger.note_values(rank, own)
                ledger.ask_known(rank, ranges, part, now_ns)
            elif (removed := self._removed.get(number)) is not None:
                for request in removed.describe(rank, ranges):
                    self._refuse(rank, request)
            else:
                raise ValueError(f"rank {rank} asks for process set {number}, which there is not")
        for place, request in enumerate(message.fresh):
            at_ns = 0 if times is None else times[place]
            ledger = self._ledgers.get(request.process_set)
            if ledger is None:
                self._refuse(rank, request)
            else:
                self._check_member(rank, ledger)
                ledger.ask(rank, request, at_ns, now_ns, message.values.get(place))

    @staticmethod
    def _check_member(rank: int, ledger: Ledger) -> None:
        if rank not in ledger.ranks:
            raise ValueError(f"rank {rank} is not in process set {ledger.process_set}")

    def _refuse(self, rank: int, request: Request) -> None:
        """A rank asks for a set that was removed before its request came."""
        error = f"{REMOVED} [{request.name}]"
        response = Response(-1, request.process_set, [], [request.name], fresh_ids=[-1], error=error)
        self._leftover.append(((rank,), response))

    # Process sets come and go by agreement in the global one.

    def _admit(self, request: Request) -> tuple[str, list[list[int]]]:
        if request.kind is Kind.ADD_PROCESS_SET:
            if any(set(ledger.ranks) == set(request.shape) for ledger in list(self._ledgers.values())):
                return "Attempted to add a duplicate process set", []
            taken = self._ledgers.keys() | self._removed.keys()
            number = next(free for free in range(1, len(taken) + 2) if free not in taken)
            self._open(number, request.shape)
            return "", [[number]]
        if request.kind is Kind.REMOVE_PROCESS_SET:
            ledger = self._ledgers.pop(request.shape[0], None)
            if ledger is None:
                return "the process set does not exist any more", []
            last = ledger.take(self._threshold_nbytes) + ledger.fail_all(REMOVED)
            self._leftover += [(ledger.ranks, response) for response in last]
            self._removed[ledger.process_set] = ledger
            return "", [[request.shape[0]]]
        return "", []

    def take(self) -> Orders | None:
        """What is ready, fused and in the order in which every rank shall do it; None if nothing is."""
        if not self.has_ready:
            return None
        responses, self._leftover = self._leftover, []
        forgotten = {}
        for number in sorted(self._ledgers):
            ledger = self._ledgers[number]
            ranks = ledger.ranks
            responses += [(ranks, response) for response in ledger.take(self._threshold_nbytes)]
            if dropped := ledger.take_forgotten():
                forgotten[number] = dropped
        self._note_told(responses, forgotten)
        return Orders(responses, forgotten)

    def _note_told(
        self, responses: Sequence[tuple[tuple[int, ...], Response]], forgotten: Mapping[int, Sequence[int]]
    ) -> None:
        receipts = self.receipts
        for ranks, response in responses:
            receipts.tell(ranks, response)
        for number, ids in forgotten.items():
            ledger = self._ledgers[number]
            receipts.when_done(ledger.ranks, partial(ledger.bury, ids))
        for number in self._removed.keys() - self._leaving:
            # Its removal is among the responses, which go to all ranks.
            self._leaving.add(number)
            receipts.when_done(self._ledgers[0].ranks, partial(self._free, number))

    def _free(self, number: int) -> None:
        del self._removed[number]
        self._leaving.discard(number)

    def name_told_to(self, rank: int) -> str:
        """A tensor of what `rank` was told to do last; "" if that is not known any more."""
        response = self.receipts.last_of(rank)
        if response is None:
            return ""
        if response.names:
            return response.names[0]
        ledger = self._ledgers.get(response.process_set)
        return "" if ledger is None else ledger.name_of(response.ids[0])

    def find_stalled(self, now_ns: int, longer_than_ns: int) -> list[Stalled]:
        """Tensors that have waited for some rank for longer than `longer_than_ns`."""
        return [
            stalled
            for ledger in list(self._ledgers.values())
            for stalled in ledger.find_stalled(now_ns, longer_than_ns)
        ]


def share_out(orders: Orders, coordinator_rank: int, others: Iterable[int]) -> dict[int, Work]:
    """What each rank is told; ranks that are told the same share one object.

    When the ranks asked is told to the first rank of the process set alone, which is the one that records it.
    """
    shares: dict[tuple[bool, ...], Work] = {}
    works = {}
    sets = [ranks for ranks, _ in orders.responses]
    distinct = dict.fromkeys(sets)
    plain: list[Response] = [
        msgspec.structs.replace(response, arrivals_ns=[]) if response.arrivals_ns else response
        for _, response in orders.responses
    ]
    ranks_of = {response.process_set: ranks for ranks, response in orders.responses}
    for rank in (coordinator_rank, *sorted(others)):
        within = {ranks: rank in ranks for ranks in distinct}
        leads = any(ranks[0] == rank for ranks in distinct)
        key = (leads, rank == coordinator_rank, *within.values())
        work = None if leads else shares.get(key)
        if work is None:
            responses = [
                response if ranks[0] == rank else plain[position]
                for position, (ranks, response) in enumerate(orders.responses)
                if within[ranks]
            ]
            # A number is forgotten for another, which the same responses give.
            forgotten = {
                number: ids for number, ids in orders.forgotten.items() if within.get(ranks_of.get(number, ()), True)
            }
            work = shares[key] = Work(responses, forgotten)
        if work.responses or work.forgotten:
            works[rank] = work
    return works


def split(orders: Orders) -> Iterator[Orders]:
    """Orders whose message would be too long, in parts."""
    parts: list[list[tuple[tuple[int, ...], Response]]] = [[]]
    length = 0
    for item in orders.responses:
        named = sum(map(len, item[1].names)) + sum(map(len, item[1].results))
        if length and length + named > _LONG_WORK:
            parts.append([])
            length = 0
        parts[-1].append(item)
        length += named
    # With the first, so that a rank which has done all of them has heard of it.
    yield Orders(parts[0], orders.forgotten)
    for part in parts[1:]:
        yield Orders(part, {})
