"""NCCL through torch.distributed, on a process group of our own: for tensors on NVIDIA GPUs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from ....core.binding import Place
from ....core.operations import ReduceOp
from .base import counts_in_bytes, joined
from .gloo import REDUCE_OPS

#: Types that NCCL has no name for, and that need no arithmetic: int16 is reduced nowhere.
_AS_BYTES: Final = (torch.int16,)

#: How long a collective may take, the device's backlog included, before torch ends the process.
_PATIENCE_S: Final = 1800.0


def is_built() -> bool:
    """Whether this torch has NCCL."""
    return dist.is_nccl_available()


@contextmanager
def _explained() -> Iterator[None]:
    """What NCCL says in the last of many lines is said in the first.

    Raises:
        RuntimeError: instead of that of torch, whose first line names a line of torch's own.
    """
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(explain(str(error))) from error


def explain(message: str) -> str:
    """One line out of an error of NCCL's, as torch raises it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    after = next((place for place, line in enumerate(lines) if line.startswith("Last error")), None)
    said = next(iter(lines[after + 1 :]), "") if after is not None else ""
    if "Duplicate GPU" in said:
        return (
            f"{said}: NCCL needs a GPU for each rank; call torch.cuda.set_device(hvd.local_rank()) first, or "
            "share one with HOROVOD_GPU_OPERATIONS=gloo"
        )
    return said or (lines[0] if lines else "NCCL failed")


class NcclTransport:
    """One NCCL process group.  Operations are queued on the current stream, and the host does not wait for them."""

    name = "nccl"

    def __init__(self, place: Place) -> None:
        """Prepare; the communicator itself is made at the first operation."""
        group: Any = vars(dist)["ProcessGroupNCCL"]  # CPU builds have none, and type checkers see those
        options = group.Options()
        # NCCL counts from when the host hands out, whatever the device still has to do before, and ends the process: the
        # control plane hears of a dead rank sooner, and aborts.
        options._timeout = timedelta(seconds=max(place.timeout_s, _PATIENCE_S))  # noqa: SLF001  as torch.distributed does
        self._rank = place.rank
        self._group: Any = group(place.store, place.rank, place.size, options)

    @_explained()
    def allreduce(self, buffer: torch.Tensor, op: ReduceOp) -> None:
        """See `Transport`."""
        options = dist.AllreduceOptions()
        options.reduceOp = REDUCE_OPS[op]
        self._group.allreduce([buffer], options).wait()

    @_explained()
    def allgather(self, outputs: Sequence[torch.Tensor], source: torch.Tensor) -> None:
        """See `Transport`.  torch gathers unequal sizes as a group of broadcasts."""
        if source.dtype in _AS_BYTES:
            outputs, source = [output.view(torch.uint8) for output in outputs], source.view(torch.uint8)
        sizes = {output.numel() for output in outputs}
        if sizes == {0}:
            return
        if len(sizes) == 1:
            # The lists of the other call are copied once more.
            self._group._allgather_base(joined(outputs), source).wait()  # noqa: SLF001  the only name it has
        else:
            self._group.allgather([list(outputs)], [source]).wait()

    @_explained()
    def broadcast(self, buffer: torch.Tensor, root: int) -> None:
        """See `Transport`."""
        if buffer.dtype in _AS_BYTES:
            buffer = buffer.view(torch.uint8)
        if buffer.numel():
            options = dist.BroadcastOptions()
            options.rootRank = root
            options.rootTensor = 0
            self._group.broadcast([buffer], options).wait()

    @_explained()
    def alltoall(
        self, output: torch.Tensor, source: torch.Tensor, received: Sequence[int], sent: Sequence[int]
    ) -> None:
        """See `Transport`."""
        if source.dtype in _AS_BYTES:
            received, sent = (counts_in_bytes(counts, source) for counts in (received, sent))
            output, source = output.view(torch.uint8), source.view(torch.uint8)
        options = dist.AllToAllOptions()
        self._group.alltoall_base(output, source, list(received), list(sent), options).wait()

    @_explained()
    def reducescatter(self, output: torch.Tensor, source: torch.Tensor, counts: Sequence[int]) -> None:
        """See `Transport`.  torch scatters unequal sizes as a group of reductions."""
        options: Any = dist.ReduceScatterOptions()
        options.reduceOp = dist.ReduceOp.SUM
        if set(counts) == {0}:
            return
        if len(set(counts)) == 1:
            self._group._reduce_scatter_base(output, source, options).wait()  # noqa: SLF001  as above
        else:
            self._group.reduce_scatter([output], [list(torch.split(source, list(counts)))], options).wait()

    def close(self) -> None:
        """See `Transport`."""
        if self._group is not None:
            self._group.shutdown()
        self._group = None

    def abort(self) -> None:
        """See `Transport`.  What waits for the device returns then, without an error."""
        group, self._group = self._group, None
        if group is not None:
            group.abort()
