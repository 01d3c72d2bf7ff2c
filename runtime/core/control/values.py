"""Values of small tensors, which come with the requests and go with the answer.

To move a few bytes by a transport takes several times as long as to agree on it.  So a rank may send a small tensor's values
along when it asks for it; if those that matter are there when all have asked, rank 0 computes the result and the answer has
it.  If they are not (another rank has more bytes, a GPU, or has joined), a transport moves the tensor as ever.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ....timeline.vocabulary import DTYPE_NBYTES
from ..fusion import Negotiated
from ..kinds import Kind
from ..operations import ReduceOp
from .messages import Request

Combine = Callable[[Request, Sequence[bytes]], bytes]
"""Reduces the values of all ranks of a process set, given in their order."""

#: Most bytes of results in one answer.
_MAX_NBYTES: Final = 1 << 22

#: More bytes of a tensor are never sent along, whatever is set.
MAX_SMALL_NBYTES: Final = 1 << 16


def sends_along(request: Request, rank: int) -> bool:
    """Whether `rank` sends the values of such a tensor along, if it is small enough."""
    if request.device != "cpu":
        return False
    if request.kind is Kind.BROADCAST:
        return request.root == rank
    return request.kind is Kind.ALLGATHER or (request.kind is Kind.ALLREDUCE and request.op != ReduceOp.ADASUM)


class Values:
    """What the ranks of one process set have sent along, by tensor, until it is answered."""

    def __init__(self, ranks: Sequence[int], combine: Combine | None) -> None:
        """Begin with nothing.

        Args:
            ranks: global ranks of the process set.
            combine: None to have transports move everything.
        """
        self._ranks = tuple(ranks)
        self._combine = combine
        self._by_name: dict[str, dict[int, bytes]] = {}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._by_name)

    def __iter__(self) -> Iterator[str]:
        """The tensors' names."""
        return iter(list(self._by_name))

    def __contains__(self, name: str) -> bool:
        """Whether there are some of a tensor."""
        return name in self._by_name

    def note(self, name: str, rank: int, values: bytes) -> None:
        """`rank` has sent them along."""
        if self._combine is not None:
            self._by_name.setdefault(name, {})[rank] = values

    def clear(self) -> None:
        """Nobody is going to be answered."""
        self._by_name.clear()

    def take(self, tensor: Negotiated) -> bytes | None:
        """The result for a tensor that all have asked for, or None if a transport has to move it; forgets the values."""
        by_rank = self._by_name.pop(tensor.request.name, None)
        if by_rank is None or self._combine is None or tensor.error or tensor.absent:
            return None
        request = tensor.request
        if request.kind is Kind.BROADCAST:
            found = by_rank.get(request.root)
            return found if found is not None and len(found) == tensor.nbytes else None
        if len(by_rank) < len(self._ranks):
            return None
        values = [by_rank[rank] for rank in self._ranks]
        if request.kind is Kind.ALLGATHER:
            row_nbytes = DTYPE_NBYTES[request.dtype]
            for length in request.shape[1:]:
                row_nbytes *= length
            expected = [rows * row_nbytes for rows in tensor.first_dimensions]
            return b"".join(values) if list(map(len, values)) == expected else None
        if request.kind is not Kind.ALLREDUCE or any(len(of_rank) != tensor.nbytes for of_rank in values):
            return None
        return self._combine(request, values)


def batches(
    results: Sequence[tuple[Negotiated, bytes]], threshold_nbytes: int
) -> Iterator[list[tuple[Negotiated, bytes]]]:
    """Put results of one kind together, in their order.

    Args:
        threshold_nbytes: most bytes in a batch of more than one tensor.
    """
    limit = min(threshold_nbytes, _MAX_NBYTES)
    batch: list[tuple[Negotiated, bytes]] = []
    key: tuple[object, ...] = ()
    total = 0
    for item in results:
        request = item[0].request
        own = (request.kind, request.dtype, request.op, request.root)
        # A name travels with the result the first time.
        nbytes = len(item[1]) + len(request.name)
        if batch and (own != key or total + nbytes > limit):
            yield batch
            batch, total = [], 0
        key = own
        batch.append(item)
        total += nbytes
    if batch:
        yield batch
