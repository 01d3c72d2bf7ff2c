"""What a transport is: the thing that moves the bytes of one process set.

A new transport is one module with one class of this shape and one line in the registry (`transports/__init__.py`).  Calls come
from one thread at a time, in the same order on all ranks; each returns when its result may be read (on the current stream,
for a device that has streams).  All tensors are flat and contiguous.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from ....core.operations import ReduceOp


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
        """Let go of connections without the other ranks, which may be gone.

        Called by another thread while one waits in a collective, which has to return: without an error, if need be.
        """


def joined(outputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Outputs that lie one behind the other, as one."""
    return outputs[0].as_strided((sum(output.numel() for output in outputs),), (1,))


def counts_in_bytes(counts: Sequence[int], tensor: torch.Tensor) -> list[int]:
    """Numbers of elements of a tensor as numbers of bytes."""
    return [count * tensor.itemsize for count in counts]
