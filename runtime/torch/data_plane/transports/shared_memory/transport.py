"""The transport of ranks on one host: no sockets, and the kernel copies nothing."""

import logging
from collections.abc import Sequence
from typing import Any, Final

import torch

from .....core.binding import Place
from .....core.operations import ReduceOp
from ...dtypes import DTYPE_NAMES
from ..base import Transport, counts_in_bytes
from ..gloo import GlooTransport
from .memory import NotShared, share

_log = logging.getLogger("tlkit.runtime")

_NAMES: Final = {ReduceOp.SUM: "sum", ReduceOp.MIN: "min", ReduceOp.MAX: "max", ReduceOp.PRODUCT: "product"}


class SharedMemoryTransport:
    """Memory that all ranks of a process set have in common."""

    name = "shm"

    def __init__(self, place: Place) -> None:
        """Share it with the other ranks.

        Raises:
            NotShared: on every rank, if one of them cannot have it.
        """
        self._segment: Any = share(place)

    def allreduce(self, buffer: torch.Tensor, op: ReduceOp) -> None:
        """See `Transport`."""
        self._segment.allreduce(buffer.data_ptr(), buffer.numel(), DTYPE_NAMES[buffer.dtype], _NAMES[op])

    def allgather(self, outputs: Sequence[torch.Tensor], source: torch.Tensor) -> None:
        """See `Transport`."""
        first = next((output for output in outputs if output.numel()), None)
        if first is not None:
            nbytes = [output.nbytes for output in outputs]
            self._segment.allgather(first.data_ptr(), source.data_ptr(), nbytes)

    def broadcast(self, buffer: torch.Tensor, root: int) -> None:
        """See `Transport`."""
        self._segment.broadcast(buffer.data_ptr(), buffer.nbytes, root)

    def alltoall(
        self, output: torch.Tensor, source: torch.Tensor, received: Sequence[int], sent: Sequence[int]
    ) -> None:
        """See `Transport`."""
        nbytes = (counts_in_bytes(counts, source) for counts in (received, sent))
        self._segment.alltoall(output.data_ptr(), source.data_ptr(), *nbytes)

    def reducescatter(self, output: torch.Tensor, source: torch.Tensor, counts: Sequence[int]) -> None:
        """See `Transport`."""
        self._segment.reducescatter(output.data_ptr(), source.data_ptr(), list(counts), DTYPE_NAMES[source.dtype])

    def close(self) -> None:
        """See `Transport`.  The memory goes with the last rank that has it."""
        self._segment = None

    def abort(self) -> None:
        """See `Transport`."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.give_up()


def open_shared_memory(place: Place) -> Transport:
    """Share memory among ranks of one host; Gloo where they cannot, which all of them agree on."""
    if not place.one_host:
        return GlooTransport(place)
    try:
        return SharedMemoryTransport(place)
    except NotShared as error:
        _log.info("process set %d moves its data through Gloo, not through shared memory: %s", place.number, error)
        return GlooTransport(place)
