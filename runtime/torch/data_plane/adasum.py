"""Adasum: a reduction that adds what is orthogonal and averages what is parallel.

Two gradients a and b become (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b (Maleki et al., "Scaling distributed training with
adaptive summation", 2020).  More than two are combined in a binary tree over the ranks, tensor by tensor.
"""

from collections.abc import Sequence

import torch

from .transports import TransportGroup


def combine(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Adasum of two vectors, computed in double precision."""
    a, b = first.double(), second.double()
    dot, a_square, b_square = torch.dot(a, b), torch.dot(a, a), torch.dot(b, b)
    a_factor = 1.0 - float(dot / (2 * a_square)) if a_square > 0 else 1.0
    b_factor = 1.0 - float(dot / (2 * b_square)) if b_square > 0 else 1.0
    return (a_factor * a + b_factor * b).to(first.dtype)


def adasum(group: TransportGroup, buffer: torch.Tensor, sizes: Sequence[int]) -> None:
    """Replace `buffer` by the Adasum over all ranks, for each tensor in it separately.

    Every rank gathers one tensor of all ranks after the other and combines them itself, in the same order, so that all of them
    get the same bits.  That moves n times the bytes of an allreduce: this is for the accuracy, not for speed.

    Args:
        sizes: elements of each tensor in `buffer`.
    """
    for tensor in torch.split(buffer, list(sizes)):
        if not tensor.numel():
            continue
        gathered = tensor.new_empty(group.size * tensor.numel())
        vectors = list(torch.split(gathered, tensor.numel()))
        group.transport(tensor.device).allgather(vectors, tensor.contiguous())
        while len(vectors) > 1:
            vectors = [combine(vectors[place], vectors[place + 1]) for place in range(0, len(vectors), 2)]
        tensor.copy_(vectors[0])
