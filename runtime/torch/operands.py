"""What the modules of operations share: which reduction is meant, compression, lists of tensors."""

from collections.abc import Sequence
from typing import Any

import torch

from ..core.arguments import Adasum, Average, Max, Min, Product, Sum, resolve_op
from ..core.operations import ReduceOp
from ..core.process_sets import ProcessSet
from .submission import start_reductions, synchronize


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


__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "apply",
    "compress_all",
    "decompress_all",
    "handle_average_backwards_compatibility",
    "plain_tensors",
    "reduce_group",
    "resolve_op",
]
