"""The collectives of `hvd`.  The module has Horovod's name, since scripts import it; the transport is whatever is there."""

import warnings
from collections.abc import Sequence
from typing import Any, Final

import torch

from ..errors import HorovodInternalError
from ..operations import ReduceOp
from ..process_sets import ProcessSet, global_process_set
from .submission import poll, require_running, set_result, start_allreduce, start_single, synchronize

Average: Final = int(ReduceOp.AVERAGE)
Sum: Final = int(ReduceOp.SUM)
Adasum: Final = int(ReduceOp.ADASUM)
Min: Final = int(ReduceOp.MIN)
Max: Final = int(ReduceOp.MAX)
Product: Final = int(ReduceOp.PRODUCT)


def _resolve_op(op: int | None, average: bool | None) -> ReduceOp:  # noqa: FBT001  Horovod's older argument
    if average is not None:
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        warnings.warn("Parameter `average` has been replaced with `op`", DeprecationWarning, stacklevel=4)
        return ReduceOp.AVERAGE if average else ReduceOp.SUM
    resolved = ReduceOp.AVERAGE if op is None else ReduceOp(op)
    if resolved is ReduceOp.ADASUM:
        raise HorovodInternalError("No Adasum operation enabled")
    return resolved


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:  # noqa: FBT001
    """Which operation `op` and the older `average` ask for."""
    return int(_resolve_op(op, average))


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce `tensor` over all ranks into a new tensor; `synchronize` the handle for it."""
    tensor = tensor.detach()
    return start_allreduce(
        [tensor],
        [torch.empty_like(tensor)],
        name,
        _resolve_op(op, average),
        (prescale_factor, postscale_factor),
        process_set,
        grouped=False,
    )


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce `tensor` over all ranks in place.  Do not touch it before `synchronize`."""
    plain = tensor.detach()
    number = start_allreduce(
        [plain],
        [plain],
        name,
        _resolve_op(op, average),
        (prescale_factor, postscale_factor),
        process_set,
        grouped=False,
    )
    set_result(number, lambda _: tensor)
    return number


def _apply(function: Any, *arguments: Any) -> Any:
    """Call an autograd function (torch leaves `apply` untyped)."""
    return function.apply(*arguments)


class _Allreduce(torch.autograd.Function):
    """Reduction whose gradient is the same reduction of the gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, op: int, *rest: Any) -> Any:
        ctx.arguments = (op, *rest)
        return synchronize(allreduce_async(tensor, None, name, op, *rest))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        op, *rest = ctx.arguments
        reduced = synchronize(allreduce_async(gradients[0].contiguous(), None, None, op, *rest))
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
) -> torch.Tensor:
    """Reduce `tensor` over all ranks; differentiable."""
    resolved = int(_resolve_op(op, average))
    context = None
    if compression is not None:
        tensor, context = compression.compress(tensor)
    reduced: torch.Tensor = _apply(_Allreduce, tensor, name, resolved, prescale_factor, postscale_factor, process_set)
    return reduced if compression is None else compression.decompress(reduced, context)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce `tensor` over all ranks in place and return it."""
    arguments = (average, name, op, prescale_factor, postscale_factor, process_set)
    reduced: torch.Tensor = synchronize(allreduce_async_(tensor, *arguments))
    return reduced


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce several tensors, which become ready together, into new ones."""
    plain = [tensor.detach() for tensor in tensors]
    return start_allreduce(
        plain,
        [torch.empty_like(tensor) for tensor in plain],
        name,
        _resolve_op(op, average),
        (prescale_factor, postscale_factor),
        process_set,
        grouped=True,
    )


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce several tensors, which become ready together, in place."""
    plain = [tensor.detach() for tensor in tensors]
    number = start_allreduce(
        plain,
        plain,
        name,
        _resolve_op(op, average),
        (prescale_factor, postscale_factor),
        process_set,
        grouped=True,
    )
    originals = tuple(tensors)
    set_result(number, lambda _: originals)
    return number


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    compression: Any = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce several tensors; they become ready together."""
    if not tensors:
        return []
    contexts: list[Any] = []
    sent = list(tensors)
    if compression is not None:
        pairs = [compression.compress(tensor) for tensor in tensors]
        sent, contexts = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    arguments = (average, name, op, prescale_factor, postscale_factor, process_set)
    reduced = list(synchronize(grouped_allreduce_async(sent, *arguments)))
    if compression is None:
        return reduced
    return [compression.decompress(tensor, context) for tensor, context in zip(reduced, contexts, strict=True)]


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,  # noqa: FBT001
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, ...]:
    """Reduce several tensors in place; they become ready together."""
    if not tensors:
        return ()
    arguments = (average, name, op, prescale_factor, postscale_factor, process_set)
    reduced: tuple[torch.Tensor, ...] = synchronize(grouped_allreduce_async_(tensors, *arguments))
    return reduced


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start to concatenate the tensors of all ranks along the first dimension, which may differ by rank."""
    return start_single("allgather", tensor.detach(), None, name, process_set)


class _Allgather(torch.autograd.Function):
    """Concatenation; its gradient is averaged over the ranks and cut to this rank's rows, as Horovod does."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> Any:
        ctx.rows, ctx.process_set = tensor.shape[0], process_set
        return synchronize(allgather_async(tensor, name, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        process_set = ctx.process_set
        gradient = gradients[0].contiguous()
        reduced = synchronize(allreduce_async(gradient, op=Average, process_set=process_set))
        rows = synchronize(allgather_async(torch.tensor([ctx.rows]), process_set=process_set))
        first = int(rows[: process_set.rank()].sum())
        return reduced.narrow(0, first, ctx.rows), None, None


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate the tensors of all ranks along the first dimension; differentiable.

    Raises:
        ValueError: the tensor has no dimension.
    """
    if tensor.dim() == 0:
        raise ValueError("allgather needs a tensor with at least one dimension; use tensor.reshape(1)")
    gathered: torch.Tensor = _apply(_Allgather, tensor, name, process_set)
    return gathered


def _check_root(root_rank: int, process_set: ProcessSet) -> None:
    ranks = process_set.ranks
    if ranks is not None and root_rank not in ranks:
        raise ValueError(f"broadcast received invalid root rank {root_rank} for provided process set")


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to send `root_rank`'s tensor to all ranks, as a new tensor."""
    require_running()
    _check_root(root_rank, process_set)
    tensor = tensor.detach()
    return start_single("broadcast", tensor, torch.empty_like(tensor), name, process_set, root_rank)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to send `root_rank`'s tensor to all ranks, in place."""
    require_running()
    _check_root(root_rank, process_set)
    plain = tensor.detach()
    number = start_single("broadcast", plain, plain, name, process_set, root_rank)
    set_result(number, lambda _: tensor)
    return number


class _Broadcast(torch.autograd.Function):
    """Copy of the root's tensor; its gradient is averaged and belongs to the root alone."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return synchronize(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gradient = gradients[0].contiguous()
        reduced = synchronize(allreduce_async(gradient, op=Average, process_set=ctx.process_set))
        if global_process_set.rank() != ctx.root_rank:
            reduced = torch.zeros_like(reduced)
        return reduced, None, None, None


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """`root_rank`'s tensor, on all ranks; differentiable."""
    copied: torch.Tensor = _apply(_Broadcast, tensor, root_rank, name, process_set)
    return copied


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Overwrite `tensor` with `root_rank`'s, and return it."""
    copied: torch.Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return copied


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks are here."""
    synchronize(start_single("barrier", torch.empty(0), torch.empty(0), None, process_set))


__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "handle_average_backwards_compatibility",
    "poll",
    "synchronize",
]
