"""Reducescatter, single and grouped."""

from collections.abc import Sequence
from typing import Any

import torch

from ..core.errors import HorovodInternalError
from ..core.operations import ReduceOp
from ..core.process_sets import ProcessSet, global_process_set
from .operands import Average, apply, compress_all, decompress_all, plain_tensors, resolve_op
from .submission import start_plain, start_reductions, synchronize


def _reducescatter_op(op: int | None, process_set: ProcessSet) -> ReduceOp:
    resolved = resolve_op(op, None, process_set)
    if resolved not in {ReduceOp.AVERAGE, ReduceOp.SUM}:
        raise HorovodInternalError("Reducescatter currently only supports AVERAGE and SUM.")
    return resolved


def _check_scatterable(tensors: Sequence[torch.Tensor]) -> None:
    if any(tensor.dim() == 0 for tensor in tensors):
        raise ValueError("Reducescatter does not support scalar inputs")


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start to reduce `tensor` over all ranks and give each rank its rows of the result.

    Rows that are left over after equal shares go to the first ranks, one each.
    """
    resolved = _reducescatter_op(op, process_set)
    _check_scatterable([tensor])
    scales = (prescale_factor, postscale_factor)
    return start_reductions(
        "reducescatter", [tensor.detach()], [None], name, resolved, scales, process_set, grouped=False
    )


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start to reduce and scatter several tensors, which become ready together."""
    resolved = _reducescatter_op(op, process_set)
    _check_scatterable(tensors)
    plain = plain_tensors(tensors)
    scales = (prescale_factor, postscale_factor)
    return start_reductions("reducescatter", plain, [None] * len(plain), name, resolved, scales, process_set)


class _Reducescatter(torch.autograd.Function):
    """Reduction of which each rank keeps its rows; the gradients of all rows are gathered again."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        grouped: bool,  # noqa: FBT001  apply takes no keywords
        op: ReduceOp,
        scales: Any,
        process_set: Any,
        *tensors: torch.Tensor,
    ) -> Any:
        ctx.op, ctx.scales, ctx.process_set = op, scales, process_set
        plain, nothing = [tensor.detach() for tensor in tensors], [None] * len(tensors)
        arguments = ("reducescatter", plain, nothing, name, op, scales, process_set)
        return synchronize(start_reductions(*arguments, grouped=grouped, waits=True))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        plain = [gradient.contiguous() for gradient in gradients]
        handle = start_plain("allgather", plain, [None] * len(plain), None, ctx.process_set, grouped=True, waits=True)
        factor = ctx.scales[0] * ctx.scales[1]
        if ctx.op is ReduceOp.SUM:
            # Horovod's convention: the gradient of a sum is that of an average times the number of ranks.
            factor *= ctx.process_set.size()
        whole = [gathered if factor == 1.0 else gathered * factor for gathered in synchronize(handle)]
        return None, None, None, None, None, *whole


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce `tensor` over all ranks and return this rank's rows of the result; differentiable."""
    resolved = _reducescatter_op(op, process_set)
    _check_scatterable([tensor])
    (sent,), contexts = compress_all([tensor], compression)
    scales = (prescale_factor, postscale_factor)
    reduced = apply(_Reducescatter, name, False, resolved, scales, process_set, sent)  # noqa: FBT003
    return decompress_all([reduced], contexts, compression)[0]


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduce and scatter several tensors, which become ready together; differentiable."""
    if not tensors:
        return []
    resolved = _reducescatter_op(op, process_set)
    _check_scatterable(tensors)
    sent, contexts = compress_all(tensors, compression)
    scales = (prescale_factor, postscale_factor)
    reduced = apply(_Reducescatter, name, True, resolved, scales, process_set, *sent)  # noqa: FBT003
    return decompress_all(reduced, contexts, compression)
