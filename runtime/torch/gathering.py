"""Allgather, broadcast and alltoall."""

from collections.abc import Sequence
from typing import Any

import torch

from ..core.operations import ReduceOp
from ..core.process_sets import ProcessSet, global_process_set
from .operands import apply, plain_tensors, reduce_group
from .submission import require_running, start_allreduce, start_plain, synchronize


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start to concatenate the tensors of all ranks along the first dimension, which may differ by rank."""
    return start_plain("allgather", [tensor.detach()], [None], name, process_set)


class _Allgather(torch.autograd.Function):
    """Concatenation; its gradients are averaged over the ranks and cut to this rank's rows, as Horovod does."""

    @staticmethod
    def forward(ctx: Any, name: str | None, grouped: bool, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:  # noqa: FBT001
        ctx.rows, ctx.process_set = [tensor.shape[0] for tensor in tensors], process_set
        plain = [tensor.detach() for tensor in tensors]
        nothing = [None] * len(plain)
        handle = start_plain("allgather", plain, nothing, name, process_set, grouped=grouped, waits=True)
        return synchronize(handle)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        process_set = ctx.process_set
        sizes = allgather_async(torch.tensor([ctx.rows], device="cpu"), process_set=process_set)
        reduced = reduce_group(
            "allreduce",
            [gradient.contiguous() for gradient in gradients],
            None,
            ReduceOp.AVERAGE,
            (1.0, 1.0),
            process_set,
        )
        starts = synchronize(sizes)[: process_set.rank()].sum(dim=0).tolist()
        mine = [part.narrow(0, start, rows) for part, start, rows in zip(reduced, starts, ctx.rows, strict=True)]
        return None, None, None, *mine


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate the tensors of all ranks along the first dimension; differentiable.

    Raises:
        ValueError: the tensor has no dimension.
    """
    if tensor.dim() == 0:
        raise ValueError("allgather needs a tensor with at least one dimension; use tensor.reshape(1)")
    gathered: torch.Tensor = apply(_Allgather, name, False, process_set, tensor)  # noqa: FBT003
    return gathered


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to gather several tensors, which become ready together."""
    plain = plain_tensors(tensors)
    return start_plain("allgather", plain, [None] * len(plain), name, process_set, grouped=True)


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[torch.Tensor, ...]:
    """Gather several tensors, which become ready together; differentiable."""
    if not tensors:
        return ()
    gathered: tuple[torch.Tensor, ...] = apply(_Allgather, name, True, process_set, *tensors)  # noqa: FBT003
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
    return start_plain("broadcast", [tensor], [torch.empty_like(tensor)], name, process_set, root=root_rank)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to send `root_rank`'s tensor to all ranks, in place."""
    return _start_broadcast(tensor, root_rank, name, process_set, waits=False)


def _start_broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet, *, waits: bool
) -> int:
    require_running()
    _check_root(root_rank, process_set)
    plain = tensor.detach()
    return start_plain("broadcast", [plain], [plain], name, process_set, root=root_rank, result=tensor, waits=waits)


class _Broadcast(torch.autograd.Function):
    """Copy of the root's tensor; its gradient is averaged and belongs to the root alone."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        require_running()
        _check_root(root_rank, process_set)
        plain, output = tensor.detach(), torch.empty_like(tensor)
        handle = start_plain("broadcast", [plain], [output], name, process_set, root=root_rank, waits=True)
        return synchronize(handle)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gradient = gradients[0].contiguous()
        handle = start_allreduce(gradient, None, None, ReduceOp.AVERAGE, (1.0, 1.0), ctx.process_set, waits=True)
        reduced = synchronize(handle)
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
    copied: torch.Tensor = apply(_Broadcast, tensor, root_rank, name, process_set)
    return copied


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Overwrite `tensor` with `root_rank`'s, and return it."""
    copied: torch.Tensor = synchronize(_start_broadcast(tensor, root_rank, name, process_set, waits=True))
    return copied


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to send a part of `tensor` to every rank; `synchronize` yields what came, and how many rows from each rank.

    Args:
        splits: rows for each rank, in order (int32 tensor, or numbers); None for equal parts.

    Raises:
        ValueError: `splits` does not fit the tensor or the process set.
    """
    require_running()
    return _start_alltoall(tensor.detach(), splits, name, process_set, waits=False)


def _start_alltoall(
    tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet, *, waits: bool
) -> int:
    sent = _splits(tensor, splits, process_set.size() or 1)
    return start_plain("alltoall", [tensor], [None], name, process_set, extra=sent, waits=waits)


def _splits(tensor: torch.Tensor, splits: Any, size: int) -> list[int]:
    """Rows for each rank."""
    if tensor.dim() == 0:
        raise ValueError("alltoall needs a tensor with at least one dimension; use tensor.reshape(1)")
    rows = tensor.shape[0]
    if splits is None:
        if rows % size:
            raise ValueError(
                "splits not provided, but first dimension of tensor is not an even multiple of the number of workers."
            )
        return [rows // size] * size
    if not isinstance(splits, torch.Tensor):
        splits = torch.tensor(splits, dtype=torch.int32, device="cpu")
    if splits.dim() != 1:
        raise ValueError("alltoall expects a 1D splits tensor")
    if splits.dtype != torch.int32:
        raise ValueError("alltoall expects splits to contain 32-bit integer elements.")
    if splits.numel() != size:
        raise ValueError("Number of entries in splits does not equal number of workers.")
    sent: list[int] = splits.tolist()
    if any(count < 0 for count in sent):
        raise ValueError("alltoall expects splits that are not negative")
    if sum(sent) > rows:
        raise ValueError("Sum of splits entries is greater than the first dimension of tensor.")
    return sent


class _Alltoall(torch.autograd.Function):
    """Exchange of parts; the gradients travel back the same way."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        output, received = synchronize(_start_alltoall(tensor.detach(), splits, name, process_set, waits=True))
        ctx.received, ctx.process_set, ctx.shape = received, process_set, tensor.shape
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gradient = gradients[0].contiguous()
        returned, _ = synchronize(_start_alltoall(gradient, ctx.received, None, ctx.process_set, waits=True))
        if returned.shape[0] < ctx.shape[0]:  # rows that were not sent have no gradient
            whole = returned.new_zeros(ctx.shape)
            whole[: returned.shape[0]] = returned
            returned = whole
        return returned, None, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send a part of `tensor` to every rank; differentiable.

    Returns:
        What came from all ranks, in rank order; with `splits` also how many rows came from each.

    Raises:
        ValueError: `splits` does not fit the tensor or the process set.
    """
    require_running()
    output, received = apply(_Alltoall, tensor, splits, name, process_set)
    return output if splits is None else (output, received)
