"""What a transport is: the thing that moves the bytes of one process set.

A new transport is one module with one class of this shape and one line in the registry.  Calls come from one thread, in the
same order on all ranks; each returns when its result may be read (on the tensor's stream, for a device that has one).
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from ..operations import ReduceOp


class Transport(Protocol):
    """Blocking collectives over contiguous tensors among the ranks of one process set."""

    @property
    def name(self) -> str:
        """How the timeline calls it, lower case: `gloo`, `nccl`, `mpi`."""

    def allreduce(self, buffer: torch.Tensor, op: ReduceOp) -> None:
        """Reduce `buffer` over all ranks, in place.  `op` is SUM, MIN, MAX or PRODUCT."""

    def allgather(self, outputs: Sequence[torch.Tensor], source: torch.Tensor) -> None:
        """Fill `outputs[r]` with rank r's `source`; the sizes may differ by rank and may be 0."""

    def broadcast(self, buffer: torch.Tensor, root: int) -> None:
        """Copy `buffer` of `root`, a rank within the set, to all ranks, in place."""

    def close(self) -> None:
        """Let go of connections.  No call may follow."""
