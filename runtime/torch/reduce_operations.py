"""Reductions: allreduce and reducescatter, single, grouped and sparse."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..core.operations import ReduceOp
from ..core.process_sets import ProcessSet, global_process_set
from .gathering import allgather_async
from .operands import Average, apply, compress_all, decompress_all, plain_tensors, reduce_group, resolve_op
from .submission import start_allreduce, start_reductions, synchronize


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> int:
    """Start to reduce `tensor` over all ranks into a new tensor; `synchronize` the handle for it.

    Args:
        priority: among the tensors that are ready, those of higher priority are reduced first.
    """
    resolved = resolve_op(op, average, process_set)
    scales = (prescale_factor, postscale_factor)
    return start_allreduce(tensor.detach(), None, name, resolved, scales, process_set, priority=priority)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> int:
    """Start to reduce `tensor` over all ranks in place.  Do not touch it before `synchronize`."""
    resolved = resolve_op(op, average, process_set)
    scales = (prescale_factor, postscale_factor)
    plain = tensor.detach() if tensor.requires_grad else tensor
    result = None if plain is tensor else tensor
    return start_allreduce(plain, plain, name, resolved, scales, process_set, priority=priority, result=result)


class _Allreduce(torch.autograd.Function):
    """Reduction whose gradient is the same reduction of the gradient."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, op: ReduceOp, scales: Any, process_set: Any, priority: int
    ) -> Any:
        ctx.arguments, ctx.priority = (op, scales, process_set), priority
        plain = tensor.detach()
        return synchronize(start_allreduce(plain, None, name, op, scales, process_set, priority=priority, waits=True))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gradient = gradients[0].contiguous()
        reduced = synchronize(start_allreduce(gradient, None, None, *ctx.arguments, priority=ctx.priority, waits=True))
        return reduced, None, None, None, None, None


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    compression: Any = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> torch.Tensor:
    """Reduce `tensor` over all ranks; differentiable."""
    resolved = resolve_op(op, average, process_set)
    context = None
    if compression is not None:
        tensor, context = compression.compress(tensor)
    scales = (prescale_factor, postscale_factor)
    reduced: torch.Tensor = apply(_Allreduce, tensor, name, resolved, scales, process_set, priority)
    return reduced if compression is None else compression.decompress(reduced, context)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> torch.Tensor:
    """Reduce `tensor` over all ranks in place and return it."""
    resolved = resolve_op(op, average, process_set)
    plain = tensor.detach()
    scales = (prescale_factor, postscale_factor)
    synchronize(start_allreduce(plain, plain, name, resolved, scales, process_set, priority=priority, waits=True))
    return tensor


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> int:
    """Start to reduce several tensors, which become ready together, into new ones."""
    plain = plain_tensors(tensors)
    outputs = [torch.empty_like(tensor) for tensor in plain]
    resolved = resolve_op(op, average, process_set)
    scales = (prescale_factor, postscale_factor)
    return start_reductions("allreduce", plain, outputs, name, resolved, scales, process_set, priority=priority)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> int:
    """Start to reduce several tensors, which become ready together, in place."""
    resolved = resolve_op(op, average, process_set)
    scales = (prescale_factor, postscale_factor)
    return _start_group(tensors, name, resolved, scales, process_set, priority=priority)


def _start_group(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: ReduceOp,
    scales: tuple[float, float],
    process_set: ProcessSet,
    *,
    priority: int = 0,
    waits: bool = False,
) -> int:
    plain = plain_tensors(tensors)
    arguments = ("allreduce", plain, plain, name, op, scales, process_set)
    return start_reductions(*arguments, priority=priority, waits=waits, result=tuple(tensors))


class _GroupedAllreduce(torch.autograd.Function):
    """Reduction of several tensors; the gradients are reduced in the same way."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: ReduceOp,
        scales: Any,
        process_set: Any,
        priority: int,
        *tensors: torch.Tensor,
    ) -> Any:
        ctx.arguments = (op, scales, process_set, priority)
        return reduce_group("allreduce", tensors, name, *ctx.arguments)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        contiguous = [gradient.contiguous() for gradient in gradients]
        return None, None, None, None, None, *reduce_group("allreduce", contiguous, None, *ctx.arguments)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    compression: Any = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> list[torch.Tensor]:
    """Reduce several tensors, which become ready together; differentiable."""
    if not tensors:
        return []
    resolved = resolve_op(op, average, process_set)
    sent, contexts = compress_all(tensors, compression)
    scales = (prescale_factor, postscale_factor)
    reduced = apply(_GroupedAllreduce, name, resolved, scales, process_set, priority, *sent)
    return decompress_all(reduced, contexts, compression)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> tuple[torch.Tensor, ...]:
    """Reduce several tensors in place; they become ready together."""
    if not tensors:
        return ()
    resolved = resolve_op(op, average, process_set)
    scales = (prescale_factor, postscale_factor)
    handle = _start_group(tensors, name, resolved, scales, process_set, priority=priority, waits=True)
    reduced: tuple[torch.Tensor, ...] = synchronize(handle)
    return reduced


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str,
    op: int,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Start to add up a sparse tensor over all ranks; call what this returns to get the result.

    Indices and values of all ranks are gathered, so the result is not coalesced.

    Args:
        op: Average divides the values by the number of ranks; anything else leaves their sum.
    """
    # The ranks' indices are joined along the first dimension, so each row is one index.
    indices = tensor._indices().t().contiguous()  # noqa: SLF001  of a tensor that need not be coalesced
    values = tensor._values().contiguous()  # noqa: SLF001
    indices_handle = allgather_async(indices, f"{name}.indices", process_set)
    values_handle = allgather_async(values, f"{name}.values", process_set)

    def result() -> torch.Tensor:
        all_values = synchronize(values_handle)
        all_indices = synchronize(indices_handle)
        if op == Average:
            all_values = all_values / (process_set.size() or 1)
        return torch.sparse_coo_tensor(
            all_indices.t(),
            all_values,
            tensor.shape,
            dtype=tensor.dtype,
            device=tensor.device,
            check_invariants=False,
        )

    return result
