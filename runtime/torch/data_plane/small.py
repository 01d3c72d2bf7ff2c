"""Small tensors as bytes: they travel in the messages of the control plane, and rank 0 reduces them.

What is computed is what a transport computes, in the same type, only in one place and in the order of the ranks: so all
ranks get the same bits.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from ...core.control.messages import Request
from ...core.operations import ReduceOp
from .arithmetic import scale
from .dtypes import DTYPES

_COMBINE: Final[dict[ReduceOp, Callable[..., Any]]] = {
    ReduceOp.AVERAGE: torch.add,
    ReduceOp.SUM: torch.add,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.PRODUCT: torch.mul,
}


def to_bytes(tensor: torch.Tensor) -> bytes:
    """The values of a contiguous tensor on the CPU.  As plain memory: views as arrays cost several times as much."""
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def from_bytes(tensor: torch.Tensor, values: bytes) -> None:
    """Overwrite a contiguous tensor on the CPU.

    Raises:
        ValueError: there are more or fewer values than it takes.
    """
    if len(values) != tensor.nbytes:
        raise ValueError(f"rank 0 sent {len(values)} bytes for a tensor of {tensor.nbytes}")
    ctypes.memmove(tensor.data_ptr(), values, len(values))


def reduce(request: Request, values: Sequence[bytes]) -> bytes:
    """What an allreduce of `values`, one of each rank in order, yields on all ranks."""
    if not values[0]:
        return b""
    dtype, op = DTYPES[request.dtype], ReduceOp(request.op)
    combine = _COMBINE[op]
    memory = bytearray(values[0])
    total = torch.frombuffer(memory, dtype=dtype)
    scale(total, request.prescale)
    for of_rank in values[1:]:
        term = torch.frombuffer(bytearray(of_rank), dtype=dtype)
        scale(term, request.prescale)
        combine(total, term, out=total)
    scale(total, request.postscale / len(values) if op is ReduceOp.AVERAGE else request.postscale)
    return bytes(memory)
