"""The coordinator's mind: who asked for what, what is complete, in which order it is executed.

A state machine without sockets, threads or clocks of its own: times come in with the messages, so that tests replay any
order of events.  One coordinator (on global rank 0) serves all process sets.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..fusion import Negotiated, fuse
from .consistency import find_disagreement
from .messages import Ready, Request, Response, Work

Key = tuple[int, str]
"""Process set and name of a tensor."""


@dataclass(slots=True)
class _Pending:
    """A tensor that some ranks have asked for."""

    requests: dict[int, Request] = field(default_factory=dict)
    arrivals_ns: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Known:
    """A tensor that was negotiated before, with what each rank asked then."""

    key: Key
    requests: dict[int, Request]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stalled:
    """A tensor that some ranks wait for and others have not asked for."""

    name: str
    process_set: int
    waiting_ns: int
    missing_ranks: tuple[int, ...]


class Coordinator:
    """Collects requests of all ranks and answers with batches to execute."""

    def __init__(
        self,
        process_sets: Mapping[int, Sequence[int]],
        *,
        fusion_threshold_nbytes: int,
        cache_capacity: int,
    ) -> None:
        """Serve `process_sets`, given as id to global ranks."""
        self._members = {number: tuple(ranks) for number, ranks in process_sets.items()}
        self._threshold_nbytes = fusion_threshold_nbytes
        self._capacity = cache_capacity
        self._pending: dict[Key, _Pending] = {}
        self._ready: list[Negotiated] = []
        self._ready_nbytes = 0
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._id_of: dict[Key, int] = {}
        self._news: set[int] = set()
        self._forgotten: list[int] = []
        self._next_id = 0
        self._next_seq = dict.fromkeys(self._members, 0)

    @property
    def has_ready(self) -> bool:
        """Whether a batch could be sent."""
        return bool(self._ready)

    @property
    def is_full(self) -> bool:
        """Whether what is ready fills a fusion buffer, so that waiting for more gains nothing."""
        return self._ready_nbytes >= self._threshold_nbytes

    def receive(self, rank: int, message: Ready, offset_ns: int) -> list[int]:
        """Take note of what `rank` is ready for.

        Args:
            offset_ns: what to add to that rank's clock to get the coordinator's.

        Returns:
            Ids that are not known (any more); the rank has to ask for those in full.
        """
        unknown = []
        for known_id, at_ns in zip(message.known, message.known_ns, strict=True):
            known = self._known.get(known_id)
            if known is None or rank not in known.requests:
                unknown.append(known_id)
            else:
                self._request(rank, known.requests[rank], at_ns + offset_ns)
        for request, at_ns in zip(message.fresh, message.fresh_ns, strict=True):
            self._request(rank, request, at_ns + offset_ns)
        return unknown

    def _request(self, rank: int, request: Request, at_ns: int) -> None:
        key = (request.process_set, request.name)
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = _Pending()
        pending.requests[rank] = request
        pending.arrivals_ns[rank] = at_ns
        members = self._members.get(request.process_set, ())
        if len(pending.requests) == len(members):
            del self._pending[key]
            negotiated = self._negotiate(key, pending, members)
            self._ready.append(negotiated)
            if not negotiated.error:
                self._ready_nbytes += negotiated.nbytes

    def _negotiate(self, key: Key, pending: _Pending, members: Sequence[int]) -> Negotiated:
        requests = pending.requests
        arrivals_ns = tuple(pending.arrivals_ns[rank] for rank in members)
        first = requests[members[0]]
        known_id = self._id_of.get(key, -1)
        if known_id < 0 or self._known[known_id].requests != requests:
            error = find_disagreement(requests)
            if error:
                return Negotiated(id=-1, request=first, arrivals_ns=arrivals_ns, error=error)
            known_id = self._learn(key, known_id, requests)
        else:
            self._known.move_to_end(known_id)
        return Negotiated(
            id=known_id,
            request=first,
            arrivals_ns=arrivals_ns,
            first_dimensions=tuple(requests[rank].shape[0] for rank in members) if first.kind == "allgather" else (),
        )

    def _learn(self, key: Key, known_id: int, requests: dict[int, Request]) -> int:
        """Give what the ranks ask for an id, so that they need not spell it out again."""
        if not self._capacity:
            return -1
        if known_id < 0:
            known_id = self._next_id
            self._next_id += 1
            self._id_of[key] = known_id
            if len(self._known) >= self._capacity:
                forgotten, old = self._known.popitem(last=False)
                del self._id_of[old.key]
                self._news.discard(forgotten)
                self._forgotten.append(forgotten)
        self._known[known_id] = _Known(key, requests)
        self._known.move_to_end(known_id)
        self._news.add(known_id)
        return known_id

    def take(self) -> Work | None:
        """The work that is ready, fused and in the order in which every rank shall do it; None if there is none."""
        if not self._ready:
            return None
        batches = fuse(self._ready, self._threshold_nbytes)
        self._ready = []
        self._ready_nbytes = 0
        responses = [self._response(batch) for batch in batches]
        forgotten, self._forgotten = self._forgotten, []
        return Work(responses, forgotten)

    def _response(self, batch: list[Negotiated]) -> Response:
        first = batch[0]
        process_set = first.request.process_set
        seq = self._next_seq[process_set]
        self._next_seq[process_set] = seq + 1
        ids = [tensor.id for tensor in batch]
        # An id that was forgotten before its first use went out has never been told to anybody.
        spelled_out = any(number in self._news or number not in self._known for number in ids)
        self._news.difference_update(ids)
        return Response(
            seq=seq,
            process_set=process_set,
            ids=ids,
            names=[tensor.request.name for tensor in batch] if spelled_out else [],
            error=first.error,
            sizes=[list(tensor.first_dimensions) for tensor in batch] if first.first_dimensions else [],
            arrivals_ns=[max(by_rank) for by_rank in zip(*(tensor.arrivals_ns for tensor in batch), strict=True)],
        )

    def find_stalled(self, now_ns: int, longer_than_ns: int) -> list[Stalled]:
        """Tensors that have waited for some rank for longer than `longer_than_ns`."""
        stalled = []
        for (process_set, name), pending in self._pending.items():
            waiting_ns = now_ns - min(pending.arrivals_ns.values())
            if waiting_ns > longer_than_ns:
                missing = tuple(rank for rank in self._members[process_set] if rank not in pending.requests)
                stalled.append(
                    Stalled(
                        name=name,
                        process_set=process_set,
                        waiting_ns=waiting_ns,
                        missing_ranks=missing,
                    )
                )
        return stalled
