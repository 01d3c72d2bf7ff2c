"""What tells whether a call of a module repeats another: what it is called with, written to since, and what it has made."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import torch

#: So many elements of an output stand for it.
_ELEMENTS_COMPARED: Final = 256
#: Of the largest element, so much may change from one iteration to the next.
_CLOSE: Final = 0.1
#: Of lists and dictionaries in what a module is called with.
MAX_DEPTH: Final = 2
_PLAIN: Final = (bool, int, float, str, type(None))
_DROPOUT: Final = torch.nn.modules.dropout._DropoutNd  # noqa: SLF001  the base of all that drop something


class NotComparableError(Exception):
    """A module is called with something of which nobody knows whether it has changed."""


def parts_of(values: Iterable[Any], tensors: list[torch.Tensor], depth: int) -> Iterator[Any]:
    """What a module is called with, as something that can be compared; tensors are collected."""
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            yield torch.Tensor
        elif isinstance(value, _PLAIN):
            yield type(value), value
        elif depth and isinstance(value, (list, tuple)):
            yield type(value), tuple(parts_of(value, tensors, depth - 1))
        elif depth and isinstance(value, dict):
            yield dict, tuple(parts_of(sorted(value.items()), tensors, depth - 1))
        else:
            raise NotComparableError


def versions_of(module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """How often each input was written to, and all weights together."""
    weights = sum(weight._version for weight in module.parameters())  # noqa: SLF001  autograd's own count
    return (*(tensor._version for tensor in tensors), weights)  # noqa: SLF001


def tensor_of(output: Any) -> torch.Tensor | None:
    """The first tensor of what a module returns."""
    values = output.values() if isinstance(output, dict) else output if isinstance(output, (list, tuple)) else [output]
    return next((value for value in values if isinstance(value, torch.Tensor)), None)


def values_of(output: torch.Tensor, module: torch.nn.Module) -> tuple[float, ...] | None:
    """Some values of an output; empty where they are on a device and nothing is drawn by chance, None if nothing can be said."""
    if output.layout != torch.strided or not output.numel():
        return None
    if output.device.type != "cpu":  # no copy from a device for this
        draws = (part for part in module.modules() if isinstance(part, _DROPOUT) and part.training and part.p)
        return None if any(True for _ in draws) else ()
    row = output.detach()
    row = row.view(-1) if row.is_contiguous() else row[(0,) * (row.dim() - 1)]
    return tuple(row[:_ELEMENTS_COMPARED].to(torch.float64).tolist())


def are_same_values(before: tuple[float, ...], now: tuple[float, ...], module: torch.nn.Module) -> bool:
    """Whether a module has made the same once more.

    A parametrization may come a little closer each time to what it stands for, as a spectral norm does by a power iteration; what
    it draws by chance is far from what it was.
    """
    if before == now or not isinstance(module, torch.nn.utils.parametrize.ParametrizationList):
        return before == now
    largest = max(map(abs, before), default=0.0)
    return all(abs(one - other) <= _CLOSE * largest for one, other in zip(before, now, strict=True))
