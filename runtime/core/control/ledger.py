"""Who has asked for what, in one process set.

A tensor that is seen for the first time is negotiated: each rank describes it in full, the descriptions are compared, and the
tensor gets an id.  From then on ranks name it by id (`response_cache.py`).  If a rank describes a known tensor differently, the
tensor is negotiated anew.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ..fusion import Negotiated, fuse, in_order
from ..kinds import Kind
from ..operations import ReduceOp
from .consistency import find_disagreement
from .messages import Request, Response, to_ranges
from .response_cache import Asked, CachedBatch, ResponseCache
from .submission_times import Times
from .values import Combine, Values, batches

JOIN_NAME: Final = "join.noname"

#: Names whose order is remembered.
_MAX_ORDERED: Final = 1 << 17


@dataclass(slots=True)
class _Pending:
    """A tensor under negotiation."""

    since_ns: int
    requests: dict[int, Request] = field(default_factory=dict)
    arrivals_ns: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stalled:
    """A tensor that some ranks wait for and others have not asked for."""

    name: str
    process_set: int
    waiting_ns: int
    missing_ranks: tuple[int, ...]


class Ledger:
    """The requests of one process set, from the first rank's to the answer."""

    def __init__(
        self,
        process_set: int,
        ranks: Sequence[int],
        *,
        cache_capacity: int,
        admit: Callable[[Request], tuple[str, list[list[int]]]] | None = None,
        combine: Combine | None = None,
    ) -> None:
        """Begin with nothing asked and nothing known.

        Args:
            ranks: global ranks of the set.
            cache_capacity: how many tensors may have an id.
            admit: decides about kinds that are no collectives; returns an error and what `Response.sizes` says.
            combine: reduces small tensors; None to leave them to transports.
        """
        self.process_set = process_set
        self.ranks = tuple(ranks)
        self._admit = admit
        self._pending: dict[str, _Pending] = {}
        self._cache = ResponseCache(ranks, cache_capacity)
        self._negotiated: list[Negotiated] = []
        self._negotiated_nbytes = 0
        self._values = Values(ranks, combine)
        self._joined: set[int] = set()
        self._next_seq = 0
        self._order: dict[str, int] = {}
        """The place of each name, in the order in which all ranks had asked for it the first time."""
        self._next_place = 0

    @property
    def has_ready(self) -> bool:
        """Whether something could be executed."""
        return bool(self._negotiated) or self._cache.has_ready

    @property
    def ready_nbytes(self) -> int:
        """Bytes of what could be executed."""
        return self._negotiated_nbytes + self._cache.ready_nbytes

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked for and nothing is ready."""
        return not self._pending and not self._negotiated and self._cache.is_idle

    # Asking.

    def ask(self, rank: int, request: Request, at_ns: int, now_ns: int, values: bytes | None = None) -> None:
        """`rank` asks for a tensor that it describes in full.

        Args:
            at_ns: when it was submitted there, on the coordinator's clock; 0 if the rank does not say.
            now_ns: the coordinator's clock.
            values: of a small tensor.
        """
        if values is not None:
            self._values.note(request.name, rank, values)
        if request.kind is Kind.JOIN:
            self._join(rank, at_ns, now_ns)
            return
        self._ask_all(self._cache.renegotiate(request.name), now_ns)
        self._ask(rank, request, at_ns, now_ns)

    def ask_known(self, rank: int, ranges: Sequence[int], times_ns: Times | None, now_ns: int) -> None:
        """`rank` asks for tensors by id (see `ResponseCache.ask`)."""
        for of_rank, request, at_ns in self._cache.ask(rank, ranges, times_ns):
            # Others may have asked by the number that the tensor has got since.
            self._ask_all(self._cache.renegotiate(request.name), now_ns)
            self._ask(of_rank, request, at_ns, now_ns)

    def note_values(self, rank: int, by_id: Mapping[int, bytes | None]) -> None:
        """`rank` sends values of small tensors along, which it is going to ask for by id."""
        for number, values in by_id.items():
            # One that is forgotten has no name any more; it is negotiated anew, and moved by a transport.
            if values is not None and (name := self._cache.name_of(number)):
                self._values.note(name, rank, values)

    def describe(self, rank: int, ranges: Sequence[int]) -> list[Request]:
        """What `rank` means by these ids."""
        return self._cache.describe(rank, ranges)

    def _ask_all(self, asked: Iterable[Asked], now_ns: int) -> None:
        for rank, request, at_ns in asked:
            self._ask(rank, request, at_ns, now_ns)

    def _ask(self, rank: int, request: Request, at_ns: int, now_ns: int) -> None:
        pending = self._pending.get(request.name)
        if pending is None:
            pending = self._pending[request.name] = _Pending(now_ns)
        else:
            first = next(iter(pending.requests.values()))
            request = first if first == request else request
            if rank in pending.requests:
                raise ValueError(f"rank {rank} asks twice for {request.name}")
        pending.requests[rank] = request
        pending.arrivals_ns[rank] = at_ns
        self._finish_if_complete(request.name, pending)

    def _finish_if_complete(self, name: str, pending: _Pending) -> None:
        absent = [rank for rank in self._joined if rank not in pending.requests]
        if len(pending.requests) + len(absent) < len(self.ranks):
            return
        del self._pending[name]
        negotiated = self._negotiate(name, pending, absent)
        self._negotiated.append(negotiated)
        if not negotiated.error:
            self._negotiated_nbytes += negotiated.nbytes

    # Agreeing.

    def _negotiate(self, name: str, pending: _Pending, absent: Sequence[int]) -> Negotiated:
        requests = pending.requests
        if not self._joined:
            self._cache.settle(name)
        described = next(requests[rank] for rank in self.ranks if rank in requests)
        arrivals_ns = tuple(pending.arrivals_ns.get(rank, 0) for rank in self.ranks)
        sizes: list[list[int]] = []
        order = self._place(name)
        error = find_disagreement(requests)
        if not error and self._joined:
            error = _refuse_joined(described)
        if not error and self._admit is not None:
            error, sizes = self._admit(described)
        if error:
            return Negotiated(id=-1, request=described, arrivals_ns=arrivals_ns, error=error, order=order)
        gathered = described.kind is Kind.ALLGATHER
        remembered = not self._joined and described.kind.numbered
        negotiated = Negotiated(
            id=self._cache.number(name) if remembered else -1,
            request=described,
            arrivals_ns=arrivals_ns,
            first_dimensions=tuple(requests[rank].shape[0] for rank in self.ranks) if gathered else (),
            sizes=sizes,
            absent=bool(absent),
            order=order,
        )
        if negotiated.id >= 0:
            self._cache.learn(negotiated, requests)
        return negotiated

    def _join(self, rank: int, at_ns: int, now_ns: int) -> None:
        self._joined.add(rank)
        # Ids speak for all ranks, and not all bring something now.
        self._ask_all(self._cache.renegotiate_all(), now_ns)
        for name, pending in list(self._pending.items()):
            self._finish_if_complete(name, pending)
        if len(self._joined) < len(self.ranks):
            return
        self._joined.clear()
        self._cache.settle_all()
        request = Request(name=JOIN_NAME, kind=Kind.JOIN, dtype="uint8", shape=())
        arrivals_ns = (at_ns,) * len(self.ranks)
        self._negotiated.append(Negotiated(id=-1, request=request, arrivals_ns=arrivals_ns, sizes=[[rank]]))

    # Answering.

    def take(self, threshold_nbytes: int) -> list[Response]:
        """What is ready, fused and in the order in which every rank of the set shall execute it."""
        small = self._take_small(threshold_nbytes) if self._values else []
        negotiated, self._negotiated, self._negotiated_nbytes = self._negotiated, [], 0
        if not negotiated:
            return small + [self._answer_known(batch) for batch in self._cache.take(threshold_nbytes)]
        known = self._cache.take_singly()
        ready = in_order([*negotiated, *(tensor for tensor, _ in known.values())])
        arrivals_ns = {number: arrivals_ns for number, (_, arrivals_ns) in known.items()}
        return small + [self._answer(batch, arrivals_ns) for batch in fuse(ready, threshold_nbytes)]

    def _take_small(self, threshold_nbytes: int) -> list[Response]:
        """What is ready and has its result already."""
        known = {}
        for name in self._values:
            found = self._cache.find_ready(name)
            if found is not None:
                known[found[0].id] = found
        fresh = [tensor for tensor in self._negotiated if tensor.request.name in self._values]
        arrivals_ns = {number: told for number, (_, told) in known.items()}
        results = []
        for tensor in in_order([*fresh, *(tensor for tensor, _ in known.values())]):
            result = self._values.take(tensor)
            if result is None:
                continue
            results.append((tensor, result))
            if tensor.id in known:
                self._cache.withdraw(tensor.id)
            else:
                self._negotiated.remove(tensor)
                self._negotiated_nbytes -= tensor.nbytes
        return [
            self._answer([tensor for tensor, _ in batch], arrivals_ns, [result for _, result in batch])
            for batch in batches(results, threshold_nbytes)
        ]

    def _place(self, name: str) -> int:
        """The place of a name, which it keeps for as long as it is remembered."""
        place = self._order.get(name)
        if place is None:
            place = self._order[name] = self._next_place
            self._next_place += 1
            if len(self._order) > _MAX_ORDERED:  # names that are used once must not fill the memory
                self._order = dict(list(self._order.items())[_MAX_ORDERED // 2 :])
        return place

    def name_of(self, number: int) -> str:
        """The name of a tensor that has, or had, this id; "" if that is not known."""
        return self._cache.name_of(number)

    def take_forgotten(self) -> list[int]:
        """Ids that were forgotten since the last call."""
        return self._cache.take_forgotten()

    def bury(self, ids: Sequence[int]) -> None:
        """All ranks have heard that these ids are forgotten."""
        self._cache.bury(ids)

    def forget_plans(self) -> None:
        """Fuse anew, since the threshold has changed."""
        self._cache.forget_plans()

    def fail_all(self, error: str) -> list[Response]:
        """Answer everything that is waiting with `error`."""
        self._ask_all(self._cache.renegotiate_all(), 0)
        responses = []
        last = self._next_place
        for _, pending in sorted(self._pending.items(), key=lambda item: (self._order.get(item[0], last), item[0])):
            request = next(iter(pending.requests.values()))
            responses.append(self._answer([Negotiated(id=-1, request=request, arrivals_ns=(), error=error)], {}))
        self._pending.clear()
        self._values.clear()
        return responses

    def _number(self) -> int:
        self._next_seq += 1
        return self._next_seq - 1

    def _answer_known(self, batch: CachedBatch) -> Response:
        gathered = batch.tensors[0].first_dimensions
        return Response(
            seq=self._number(),
            process_set=self.process_set,
            ids=batch.ranges,
            names=[],
            sizes=[list(tensor.first_dimensions) for tensor in batch.tensors] if gathered else [],
            arrivals_ns=self._cache.arrivals_ns(batch),
        )

    def _answer(
        self, batch: list[Negotiated], known_ns: dict[int, tuple[int, ...]], results: Sequence[bytes] = ()
    ) -> Response:
        """Tell what to do with a batch.

        Args:
            known_ns: ids of the tensors that were asked for by number, and when each rank did.
            results: of the tensors, if they are there already.
        """
        first = batch[0]
        told = [known_ns.get(tensor.id, tensor.arrivals_ns) for tensor in batch]
        arrivals_ns = [max(by_rank) for by_rank in zip(*told, strict=True)] if all(map(all, told)) else []
        by_number = all(tensor.id in known_ns for tensor in batch)
        return Response(
            seq=self._number(),
            process_set=self.process_set,
            ids=to_ranges([tensor.id for tensor in batch]) if by_number else [],
            names=[] if by_number else [tensor.request.name for tensor in batch],
            fresh_ids=[] if by_number else [tensor.id for tensor in batch],
            error=first.error,
            sizes=[list(tensor.first_dimensions) for tensor in batch] if first.first_dimensions else first.sizes,
            absent=[tensor.request for tensor in batch] if first.absent else [],
            arrivals_ns=arrivals_ns,
            results=list(results),
        )

    # Stalls.

    def find_stalled(self, now_ns: int, longer_than_ns: int) -> list[Stalled]:
        """Tensors that have waited for some rank for longer than `longer_than_ns`; has to be called now and then."""
        waiting = self._cache.find_waiting(now_ns)
        for name, pending in self._pending.items():
            missing = [rank for rank in self.ranks if rank not in pending.requests and rank not in self._joined]
            waiting.append((name, pending.since_ns, missing))
        return [
            Stalled(name=name, process_set=self.process_set, waiting_ns=now_ns - since_ns, missing_ranks=tuple(missing))
            for name, since_ns, missing in waiting
            if now_ns - since_ns > longer_than_ns
        ]


def _refuse_joined(request: Request) -> str:
    """Why a tensor cannot be executed while some rank has joined; "" if it can."""
    if request.kind.joinable and request.op != ReduceOp.ADASUM:
        return ""
    hint = " Specify sparse_as_dense=True for DistributedOptimizer." if request.kind is Kind.ALLGATHER else ""
    kind = "Adasum" if request.kind is Kind.ALLREDUCE else request.kind.replace("_", " ").capitalize()
    return f"{kind} is not supported with Join at this time.{hint} [{request.name}]"
