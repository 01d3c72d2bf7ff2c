"""Gloo through torch.distributed, on a process group of our own.

The group is made directly, not by `init_process_group`, so that a script may use torch.distributed beside us.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from ....core.binding import Place
from ....core.operations import ReduceOp
from .base import counts_in_bytes
from .pair import Pair, open_pair

REDUCE_OPS: Final[dict[ReduceOp, Any]] = {
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.MAX: dist.ReduceOp.MAX,
    ReduceOp.PRODUCT: dist.ReduceOp.PRODUCT,
}

#: Types that torch's Gloo does not move by themselves.
_AS_BYTES: Final = (torch.bool, torch.int16)

#: Larger tensors are reduced in so many parts at a time: at 4 MB two take three quarters of the time of one.
_PARTS: Final = 2
_SPLIT_NBYTES: Final = 2 * 1024 * 1024

#: Two ranks send each other so many bytes whole and add them up each for itself: as many bytes as in halves, with half as much
#: waiting for each other, and on the thread that waits.  64 KB take four tenths of the time, 1 MB seven, 2 MB no less.
_EXCHANGED_NBYTES: Final = 1024 * 1024
_PAIR: Final = 2


class GlooTransport:
    """One Gloo process group."""

    name = "gloo"

    def __init__(self, place: Place) -> None:
        """Connect to the other ranks.

        Raises:
            RuntimeError: they cannot be reached.
        """
        group: Any = dist.ProcessGroupGloo
        options = group._Options()  # noqa: SLF001  the public constructor cannot choose the interface
        options._timeout = timedelta(seconds=place.timeout_s)  # noqa: SLF001
        options._threads = _PARTS  # noqa: SLF001
        if place.interface:
            options._devices = [group.create_device(interface=place.interface)]  # noqa: SLF001
        elif place.loopback:
            options._devices = [group.create_device(hostname="127.0.0.1")]  # noqa: SLF001
        elif place.address:
            options._devices = [group.create_device(hostname=place.address)]  # noqa: SLF001
        else:
            options._devices = [group.create_default_device()]  # noqa: SLF001
        self._rank, self._size = place.rank, place.size
        self._from_other: torch.Tensor | None = None
        """Where an exchange puts what comes, in bytes."""
        self._connections = place.store.connections
        self._group: Any = place.store.connect(lambda: group(place.store, place.rank, place.size, options))
        self._pair: Pair | None = None
        """What adds up for two ranks, where they could be connected besides."""
        if place.size == _PAIR:
            self._pair = place.store.connect(lambda: open_pair(place))

    def allreduce(self, buffer: torch.Tensor, op: ReduceOp) -> None:
        """See `Transport`."""
        pair = self._pair
        if pair is not None and pair.takes(buffer, op):
            pair.allreduce(buffer, op)
            return
        if self._size == _PAIR and op is ReduceOp.SUM and 0 < buffer.nbytes <= _EXCHANGED_NBYTES:
            self._exchange(buffer)
            return
        options = dist.AllreduceOptions()
        options.reduceOp = REDUCE_OPS[op]
        parts = _PARTS if buffer.nbytes >= _SPLIT_NBYTES else 1
        # What one part waits for the network, the other uses to add up.
        under_way = [self._group.allreduce([part], options) for part in torch.chunk(buffer, parts)]
        for part in under_way:
            part.wait()

    def _exchange(self, buffer: torch.Tensor) -> None:
        """Add what the only other rank has; both get the same bits, since a sum of two has no order."""
        if self._from_other is None:
            # The next one to use it may not be in inference mode, if this one is.
            with torch.inference_mode(mode=False):
                self._from_other = torch.empty(_EXCHANGED_NBYTES, dtype=torch.uint8, device="cpu")
        came = self._from_other[: buffer.nbytes].view(buffer.dtype)
        coming = self._group.recv([came], 1 - self._rank, 0)
        going = self._group.send([buffer], 1 - self._rank, 0)
        coming.wait()
        going.wait()  # before it changes
        with torch.no_grad():
            buffer.add_(came)

    def allgather(self, outputs: Sequence[torch.Tensor], source: torch.Tensor) -> None:
        """See `Transport`.  Gloo gathers equal sizes only, so unequal ones are broadcast one by one."""
        if source.dtype in _AS_BYTES:
            outputs, source = [output.view(torch.uint8) for output in outputs], source.view(torch.uint8)
        if len({output.numel() for output in outputs}) == 1:
            if source.numel():
                self._group.allgather([list(outputs)], [source]).wait()
            return
        outputs[self._rank].copy_(source)
        for root, output in enumerate(outputs):
            self.broadcast(output, root)

    def broadcast(self, buffer: torch.Tensor, root: int) -> None:
        """See `Transport`."""
        if buffer.dtype in _AS_BYTES:
            buffer = buffer.view(torch.uint8)
        if buffer.numel():
            options = dist.BroadcastOptions()
            options.rootRank = root
            options.rootTensor = 0
            self._group.broadcast([buffer], options).wait()

    def alltoall(
        self, output: torch.Tensor, source: torch.Tensor, received: Sequence[int], sent: Sequence[int]
    ) -> None:
        """See `Transport`."""
        options = dist.AllToAllOptions()
        if source.dtype in _AS_BYTES:
            received, sent = (counts_in_bytes(counts, source) for counts in (received, sent))
            output, source = output.view(torch.uint8), source.view(torch.uint8)
        self._group.alltoall_base(output, source, list(received), list(sent), options).wait()

    def reducescatter(self, output: torch.Tensor, source: torch.Tensor, counts: Sequence[int]) -> None:
        """See `Transport`.  Gloo's own takes equal pieces only, and is an allreduce as well."""
        self.allreduce(source, ReduceOp.SUM)
        output.copy_(source[sum(counts[: self._rank]) :][: output.numel()])

    def close(self) -> None:
        """See `Transport`."""
        pair, self._pair = self._pair, None
        if pair is not None:
            pair.close()
        self._group = None

    def abort(self) -> None:
        """See `Transport`.  torch's own `abort` does not wake waiting threads."""
        pair = self._pair  # which the thread that waits may be using: it is closed with the last reference
        if pair is not None:
            pair.cut()
        self._connections.cut()
        self._group = None
