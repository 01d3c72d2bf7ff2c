"""What a transport is: the thing that moves the bytes of one process set.

A new transport is one module with one class of this shape and one line in the registry (`transports/__init__.py`).  Calls come
from one thread at a time, in the same order on all ranks; each returns when its result may be read (on the current stream,
for a device that has streams).  All tensors are flat and contiguous.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..operations import ReduceOp


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Which ranks are to be connected, and by what means they can find each other."""

    store: Any
    """A torch.distributed store of their own."""
    ranks: tuple[int, ...]
    """Global ranks of the process set, in order."""
    rank: int
    """This rank's place among them."""
    number: int
    """Distinguishes the process sets of a job; the same on all ranks."""
    timeout_s: float
    """For connecting, and for a collective in which a peer makes no progress."""
    interface: str = ""
    """Network interface to use, "" for the one of the host's name."""
    address: str = ""
    """An address of this host that the others reach; used where no interface is named, "" for that of the host's name."""
    loopback: bool = False
    """Whether all ranks are on this host, so that nothing has to listen on a network."""
    communicator: Any = None
    """The job's mpi4py communicator, where there is one; its ranks are the global ranks."""

    @property
    def size(self) -> int:
        """How many ranks are to be connected."""
        return len(self.ranks)


class Transport(Protocol):
    """Blocking collectives among the ranks of one process set."""

    @property
    def name(self) -> str:
        """How the timeline calls it, lower case: `gloo`, `nccl`, `mpi`."""

    def allreduce(self, buffer: torch.Tensor, op: ReduceOp) -> None:
        """Reduce `buffer` over all ranks, in place.  `op` is SUM, MIN, MAX or PRODUCT."""

    def allgather(self, outputs: Sequence[torch.Tensor], source: torch.Tensor) -> None:
        """Fill `outputs[r]` with rank r's `source`; the sizes may differ by rank and may be 0.

        The outputs lie one behind the other in memory.
        """

    def broadcast(self, buffer: torch.Tensor, root: int) -> None:
        """Copy `buffer` of `root`, a rank within the set, to all ranks, in place."""

    def alltoall(
        self, output: torch.Tensor, source: torch.Tensor, received: Sequence[int], sent: Sequence[int]
    ) -> None:
        """Send a piece of `source` to every rank and fill `output` with theirs; the pieces' elements by rank, in order."""

    def reducescatter(self, output: torch.Tensor, source: torch.Tensor, counts: Sequence[int]) -> None:
        """Sum `source` over all ranks and fill `output` with this rank's piece; `counts` are the pieces' elements."""

    def close(self) -> None:
        """Let go of connections, together with the other ranks.  No call may follow."""

    def abort(self) -> None:
        """Let go of connections without the other ranks, which may be gone."""
