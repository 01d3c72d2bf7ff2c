"""Gloo through torch.distributed, on a process group of our own.

The group is made directly, not by `init_process_group`, so that a script may use torch.distributed beside us.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ..operations import ReduceOp

_OPERATIONS: Final[dict[ReduceOp, Any]] = {
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.MAX: dist.ReduceOp.MAX,
    ReduceOp.PRODUCT: dist.ReduceOp.PRODUCT,
}


class GlooTransport:
    """One Gloo process group."""

    name = "gloo"

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        timeout_s: float,
        interface: str = "",
        loopback: bool = False,
    ) -> None:
        """Connect to the other ranks.

        Args:
            rank: rank within the group.
            timeout_s: for connecting, and for a collective in which a peer makes no progress.
            interface: network interface to use, "" for the one of the host's name.
            loopback: all ranks are on this host, so that nothing has to listen on a network.
        """
        group: Any = dist.ProcessGroupGloo
        options = group._Options()  # noqa: SLF001  the public constructor cannot choose the interface
        options._timeout = timedelta(seconds=timeout_s)  # noqa: SLF001
        if interface:
            options._devices = [group.create_device(interface=interface)]  # noqa: SLF001
        elif loopback:
            options._devices = [group.create_device(hostname="127.0.0.1")]  # noqa: SLF001
        else:
            options._devices = [group.create_default_device()]  # noqa: SLF001
        self._size = size
        self._group: Any = group(store, rank, size, options)

    def allreduce(self, buffer: torch.Tensor, op: ReduceOp) -> None:
        """See `Transport`."""
        options = dist.AllreduceOptions()
        options.reduceOp = _OPERATIONS[op]
        self._group.allreduce([buffer], options).wait()

    def allgather(self, outputs: Sequence[torch.Tensor], source: torch.Tensor) -> None:
        """See `Transport`.  Gloo gathers equal sizes only, so unequal ones are broadcast one by one."""
        if len({output.numel() for output in outputs}) == 1:
            if source.numel():
                flat = [output.view(-1) for output in outputs]
                self._group.allgather([flat], [source.reshape(-1)]).wait()
            return
        rank = self._group.rank()
        outputs[rank].copy_(source.view_as(outputs[rank]))
        for root, output in enumerate(outputs):
            if output.numel():
                self.broadcast(output, root)

    def broadcast(self, buffer: torch.Tensor, root: int) -> None:
        """See `Transport`."""
        if buffer.numel():
            options = dist.BroadcastOptions()
            options.rootRank = root
            options.rootTensor = 0
            self._group.broadcast([buffer], options).wait()

    def close(self) -> None:
        """See `Transport`."""
        self._group = None
