"""What the modules of operations share: which reduction is meant, compression, lists of tensors."""

import warnings
from collections.abc import Sequence
from typing import Any, Final

import torch

from ..core.operations import ReduceOp
from ..core.process_sets import ProcessSet, global_process_set
from .submission import require_running, start_reductions, synchronize

Average: Final = int(ReduceOp.AVERAGE)
Sum: Final = int(ReduceOp.SUM)
Adasum: Final = int(ReduceOp.ADASUM)
Min: Final = int(ReduceOp.MIN)
Max: Final = int(ReduceOp.MAX)
Product: Final = int(ReduceOp.PRODUCT)

_REDUCE_OPS: Final = {int(op): op for op in ReduceOp}


def resolve_op(op: int | None, average: bool | None, process_set: ProcessSet = global_process_set) -> ReduceOp:  # noqa: FBT001
    """The reduction that `op` and the older `average` ask for."""
    if average is not None:
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        warnings.warn("Parameter `average` has been replaced with `op`", DeprecationWarning, stacklevel=4)
        return ReduceOp.AVERAGE if average else ReduceOp.SUM
    if op is None:
        return ReduceOp.AVERAGE
    resolved = _REDUCE_OPS.get(op)
    if resolved is None:
        raise ValueError(f"op={op} is no reduction: choose hvd.Average, Sum, Min, Max, Product or Adasum")
    if resolved is ReduceOp.ADASUM:
        _check_adasum(process_set)
    return resolved


def _check_adasum(process_set: ProcessSet) -> None:
    if process_set is not global_process_set and process_set.process_set_id != 0:
        raise NotImplementedError("Adasum does not support non-global process sets at this time.")
    running = require_running()
    if running.topology.size & (running.topology.size - 1):
        raise NotImplementedError("Running Adasum with non-power of 2 ranks is not supported yet.")


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:  # noqa: FBT001
    """Which operation `op` and the older `average` ask for."""
    return int(resolve_op(op, average))


def apply(function: Any, *arguments: Any) -> Any:
    """Call an autograd function (torch leaves `apply` untyped)."""
    return function.apply(*arguments)


def compress_all(tensors: Sequence[torch.Tensor], compression: Any) -> tuple[list[torch.Tensor], list[Any]]:
    """Tensors as they are sent, and what `decompress_all` needs."""
    if compression is None:
        return list(tensors), []
    pairs = [compression.compress(tensor) for tensor in tensors]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def decompress_all(reduced: Sequence[torch.Tensor], contexts: list[Any], compression: Any) -> list[torch.Tensor]:
    """Tensors as they were before `compress_all`."""
    if compression is None:
        return list(reduced)
    return [compression.decompress(tensor, context) for tensor, context in zip(reduced, contexts, strict=True)]


def plain_tensors(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors without their history.

    Raises:
        ValueError: there are none.
    """
    if not tensors:
        raise ValueError("a grouped operation needs at least one tensor")
    return [tensor.detach() for tensor in tensors]


def reduce_group(
    kind: str,
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: ReduceOp,
    scales: tuple[float, float],
    process_set: ProcessSet,
    priority: int = 0,
) -> tuple[torch.Tensor, ...]:
    """Reduce or scatter several tensors and wait for the results."""
    plain = plain_tensors(tensors)
    outputs = [torch.empty_like(tensor) if kind == "allreduce" else None for tensor in plain]
    reduced: tuple[torch.Tensor, ...] = synchronize(
        start_reductions(kind, plain, outputs, name, op, scales, process_set, priority=priority, waits=True)
    )
    return reduced
