"""Tensors that were negotiated before, and which ranks have asked for them again.

Ranks name such a tensor by its id.  Who has asked is kept as sets of ids (`bits.py`), bit k for id `base + k`, so that a message
costs a few operations on integers, however many tensors it is about.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ..fusion import Negotiated, fuse, in_order
from . import bits
from .messages import Request, from_ranges, to_ranges
from .submission_times import SubmissionTimes, Times

#: Plans that are kept; a training repeats a few, and one that never repeats must not fill the memory.
_MAX_PLANS: Final = 256

#: Ids may spread over this many times the capacity before the oldest are forgotten.
_SPREAD: Final = 4

#: So many times the capacity of tensors without an id may come before one is forgotten that was not asked for meanwhile.
_PATIENCE: Final = 4

Asked = tuple[int, Request, int]
"""A rank, what it asks for, and when it did (0 if it does not say)."""


@dataclass(slots=True)
class _CachedTensor:
    """A tensor that was negotiated before."""

    id: int
    name: str
    requests: dict[int, Request]
    """As each rank asked; equal requests are one object."""
    negotiated: Negotiated


@dataclass(slots=True)
class CachedBatch:
    """Tensors that travel together whenever the same set of ids is ready."""

    ids: list[int]
    ranges: list[int]
    """The same, as `to_ranges` writes them."""
    tensors: list[Negotiated]


class ResponseCache:
    """The tensors of one process set that have an id."""

    def __init__(self, ranks: Sequence[int], capacity: int) -> None:
        """Begin with none.

        Args:
            ranks: global ranks of the process set.
            capacity: how many tensors may have an id.
        """
        self._ranks = tuple(ranks)
        self._row = {rank: row for row, rank in enumerate(self._ranks)}
        self.capacity = capacity
        self._known: dict[int, _CachedTensor] = {}
        self._id_of: dict[str, int] = {}
        self._next_id = 0
        self._base = 0
        self._valid = 0
        self._used = 0
        self._refused = 0
        """How many tensors came while there was no room, since it was last looked who is not asked for any more."""
        self._forgotten: list[int] = []
        self._gone: dict[int, dict[int, Request]] = {}
        """What each rank means by an id that is forgotten, until all have heard of that."""
        # A rank asks once for every time that the tensor is executed, so it has asked if the two parities differ.
        self._asked_parity = [0] * len(self._ranks)
        self._done_parity = 0
        self._tally = bits.Tally()
        self._slow = 0
        """Tensors that are being negotiated anew: requests for them are not counted here."""
        self._ready = 0
        self.ready_nbytes = 0
        self._nbytes_of: dict[int, int] = {}
        self._plans: dict[int, list[CachedBatch]] = {}
        self._times = SubmissionTimes(len(self._ranks))
        self._waiting_since: dict[int, int] = {}

    @property
    def has_ready(self) -> bool:
        """Whether all ranks have asked for some tensor."""
        return bool(self._ready)

    @property
    def is_idle(self) -> bool:
        """Whether no rank waits for any of them."""
        return not self._ready and not self._tally.positive()

    # Asking.

    def ask(self, rank: int, ranges: Sequence[int], times_ns: Times | None) -> list[Asked]:
        """`rank` asks for tensors by id.

        Args:
            ranges: the ids (see `to_ranges`).
            times_ns: when each was submitted, on the coordinator's clock; None if the rank does not say.

        Returns:
            Requests for tensors that are being negotiated anew, or that were forgotten before the rank could know.

        Raises:
            ValueError: the rank asks for what it has asked for already, or was never given.
        """
        row = self._row[rank]
        gone: list[Asked] = []
        if self._gone or any(start < self._base for start in ranges[::2]):
            ranges, times_ns, gone = self._take_gone(rank, ranges, times_ns)
        asked = bits.of_ranges(ranges, self._base)
        if asked & ~self._valid:
            raise ValueError(f"rank {rank} requests an id that no tensor has")
        if times_ns is not None or self._times.are_told:
            self._times.note(row, ranges, self._base, times_ns, self._next_id - self._base)
        slow = asked & self._slow
        renegotiated = [self._asked(rank, offset) for offset in bits.members(slow)]
        asked &= ~slow
        if asked & (self._asked_parity[row] ^ self._done_parity):
            raise ValueError(f"rank {rank} requests the same tensor twice")
        self._asked_parity[row] ^= asked
        self._tally.add(asked)
        complete = self._tally.equal_to(len(self._ranks))
        if complete:
            self._tally.clear(complete)
            self._done_parity ^= complete
            self._used |= complete
            self._ready |= complete
            self.ready_nbytes += self._count_nbytes(complete)
        return gone + renegotiated

    def _take_gone(
        self, rank: int, ranges: Sequence[int], times_ns: Times | None
    ) -> tuple[Sequence[int], Times | None, list[Asked]]:
        """Requests for tensors that were forgotten, and the rest."""
        ids = from_ranges(ranges)
        if not any(number in self._gone or number < self._base for number in ids):
            return ranges, times_ns, []
        asked: list[Asked] = []
        kept = []
        for position, number in enumerate(ids):
            requests = self._gone.get(number)
            if requests is not None:
                asked.append((rank, requests[rank], 0 if times_ns is None else times_ns[position]))
            elif number < self._base:
                raise ValueError(f"rank {rank} requests an id that no tensor has")
            else:
                kept.append(position)
        left = to_ranges([ids[position] for position in kept])
        return left, None if times_ns is None else [times_ns[position] for position in kept], asked

    def describe(self, rank: int, ranges: Sequence[int]) -> list[Request]:
        """What `rank` means by these ids.

        Raises:
            ValueError: it was never given one of them.
        """
        described = []
        for number in from_ranges(ranges):
            known = self._known.get(number)
            requests = self._gone.get(number) if known is None else known.requests
            if requests is None:
                raise ValueError(f"rank {rank} requests an id that no tensor has")
            described.append(requests[rank])
        return described

    def _asked(self, rank: int, offset: int) -> Asked:
        known = self._known[self._base + offset]
        return rank, known.requests[rank], self._times.of_rank(self._row[rank], offset)

    def _count_nbytes(self, ids: int) -> int:
        nbytes = self._nbytes_of.get(ids)
        if nbytes is None:
            if len(self._nbytes_of) >= _MAX_PLANS:
                self._nbytes_of.clear()
            nbytes = sum(self._known[self._base + offset].negotiated.nbytes for offset in bits.members(ids))
            self._nbytes_of[ids] = nbytes
        return nbytes

    # Negotiating anew.

    def renegotiate(self, name: str) -> list[Asked]:
        """A rank describes a tensor differently, or for the first time: hand out what ranks have asked for by its id."""
        number = self._id_of.get(name)
        if number is None or self._slow >> (number - self._base) & 1:
            return []
        return self._hand_out(1 << (number - self._base))

    def renegotiate_all(self) -> list[Asked]:
        """Hand out everything that ranks have asked for, and from now on what they ask for, until `settle_all`."""
        return self._hand_out(self._valid & ~self._slow)

    def _hand_out(self, ids: int) -> list[Asked]:
        self._slow |= ids
        waiting = self._tally.positive() & ids
        self._tally.clear(waiting)
        asked = []
        for offset in bits.members(waiting):
            bit = 1 << offset
            for row, rank in enumerate(self._ranks):
                if (self._asked_parity[row] ^ self._done_parity) & bit:
                    self._asked_parity[row] ^= bit
                    asked.append(self._asked(rank, offset))
        return asked

    def settle(self, name: str) -> None:
        """The tensor was negotiated anew: its id counts again."""
        number = self._id_of.get(name)
        if number is not None:
            self._slow &= ~(1 << (number - self._base))

    def settle_all(self) -> None:
        """All ids count again."""
        self._slow = 0

    # Knowing.

    def number(self, name: str) -> int:
        """The id of a tensor, a new one if it has none; -1 if there shall be none."""
        if not self.capacity:
            return -1
        known_id = self._id_of.get(name)
        if known_id is None:
            if not self._make_room():
                return -1
            known_id = self._id_of[name] = self._next_id
            self._next_id += 1
        return known_id

    def learn(self, negotiated: Negotiated, requests: dict[int, Request]) -> None:
        """Remember what the ranks asked for under the id of `negotiated`."""
        number = negotiated.id
        self._known[number] = _CachedTensor(number, negotiated.request.name, dict(requests), negotiated)
        bit = 1 << (number - self._base)
        self._valid |= bit
        self._used |= bit
        self._plans.clear()
        self._nbytes_of.clear()

    def _make_room(self) -> bool:
        """Whether one more tensor may have an id.

        If there are too many, those that were not asked for in a long while are forgotten, and no others: a training with more
        tensors than ids repeats them all, and would never meet again what was forgotten for what came last.
        """
        if len(self._known) >= self.capacity:
            self._refused += 1
            if self._refused <= _PATIENCE * self.capacity:
                return False
            self._forget(self._valid & ~self._busy() & ~self._used)
            self._used = self._refused = 0
            if len(self._known) >= self.capacity:
                return False
        width = self._next_id - self._base
        if width >= _SPREAD * max(self.capacity, 64):
            # What keeps the window open is a few old tensors: they can be described again.
            self._forget(self._valid & ((1 << (width // 2)) - 1) & ~self._busy())
            held = self._valid | self._busy()
            self._move_window((held & -held).bit_length() - 1 if held else width)
        return True

    def _busy(self) -> int:
        return self._tally.positive() | self._slow | self._ready

    def _forget(self, ids: int) -> None:
        for offset in bits.members(ids):
            known = self._known.pop(self._base + offset)
            del self._id_of[known.name]
            self._forgotten.append(known.id)
            self._gone[known.id] = known.requests
        self._valid &= ~ids
        # A tensor that comes again gets another id, so what was said of this one does not matter any more.
        self._asked_parity = [parity & ~ids for parity in self._asked_parity]
        self._done_parity &= ~ids
        self._plans.clear()
        self._nbytes_of.clear()

    def _move_window(self, count: int) -> None:
        self._base += count
        self._valid >>= count
        self._used >>= count
        self._slow >>= count
        self._ready >>= count
        self._done_parity >>= count
        self._asked_parity = [parity >> count for parity in self._asked_parity]
        self._tally.drop_lowest(count)
        self._times.drop_lowest(count)
        self._plans.clear()
        self._nbytes_of.clear()

    def take_forgotten(self) -> list[int]:
        """Ids that were forgotten since the last call.  They are understood until `bury`."""
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def name_of(self, number: int) -> str:
        """The name of a tensor; "" for an id that is not given."""
        known = self._known.get(number)
        return "" if known is None else known.name

    def bury(self, ids: Sequence[int]) -> None:
        """All ranks have heard that these ids are forgotten, so none will ask for them any more."""
        for number in ids:
            self._gone.pop(number, None)

    # Answering.

    def take(self, threshold_nbytes: int) -> list[CachedBatch]:
        """What all ranks have asked for, fused."""
        ready, self._ready, self.ready_nbytes = self._ready, 0, 0
        if not ready:
            return []
        plan = self._plans.get(ready)
        if plan is None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            plan = self._plans[ready] = list(self._plan(ready, threshold_nbytes))
        return plan

    def find_ready(self, name: str) -> tuple[Negotiated, tuple[int, ...]] | None:
        """A tensor that all ranks have asked for, and when each did (0 if it does not say); None if it is not ready."""
        number = self._id_of.get(name)
        if number is None or not self._ready >> (number - self._base) & 1:
            return None
        return self._known[number].negotiated, self._times.of(number - self._base)

    def withdraw(self, number: int) -> None:
        """A tensor that is ready is answered otherwise."""
        self._ready &= ~(1 << (number - self._base))
        self.ready_nbytes -= self._known[number].negotiated.nbytes

    def take_singly(self) -> dict[int, tuple[Negotiated, tuple[int, ...]]]:
        """What all ranks have asked for, with when each rank did (0 if it does not say), by id."""
        ready, self._ready, self.ready_nbytes = self._ready, 0, 0
        taken = {}
        for offset in bits.members(ready):
            taken[self._base + offset] = self._known[self._base + offset].negotiated, self._times.of(offset)
        return taken

    def _plan(self, ready: int, threshold_nbytes: int) -> Iterator[CachedBatch]:
        tensors = [self._known[self._base + offset].negotiated for offset in bits.members(ready)]
        for batch in fuse(in_order(tensors), threshold_nbytes):
            ids = [tensor.id for tensor in batch]
            yield CachedBatch(ids, to_ranges(ids), batch)

    def forget_plans(self) -> None:
        """Fuse anew, since the threshold has changed."""
        self._plans.clear()

    def arrivals_ns(self, batch: CachedBatch) -> list[int]:
        """When each rank had asked for the last tensor of a batch; empty if some rank does not say."""
        return self._times.last(batch.ranges, self._base)

    # Stalls.

    def find_waiting(self, now_ns: int) -> list[tuple[str, int, list[int]]]:
        """Tensors that some rank waits for: name, since when as far as earlier calls have noticed, and the missing ranks."""
        found = []
        since = {}
        for offset in bits.members(self._tally.positive()):
            # A tensor that was executed in between waits anew; the parity of its executions tells.
            key = (self._base + offset) * 2 + (self._done_parity >> offset & 1)
            since[key] = self._waiting_since.get(key, now_ns)
            missing = [
                rank
                for row, rank in enumerate(self._ranks)
                if not (self._asked_parity[row] ^ self._done_parity) >> offset & 1
            ]
            found.append((self._known[self._base + offset].name, since[key], missing))
        self._waiting_since = since
        return found
