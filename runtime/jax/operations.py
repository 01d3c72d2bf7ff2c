"""Collectives on trees of arrays; `allreduce` also inside of compiled functions, by a callback in the order of the program."""

from collections.abc import Sequence
from typing import Any, Final

import jax
import numpy as np
import torch
from jax.experimental import io_callback

from ..core.calls import calling
from ..core.operations import ReduceOp
from ..torch import gathering, reduce_operations
from ..torch.arrays import array_to_tensor, tensor_to_array
from ..torch.basics import size
from ..torch.submission import synchronize
from . import steps
from .arrays import to_array, to_tensor

Average: Final = int(ReduceOp.AVERAGE)
Sum: Final = int(ReduceOp.SUM)
Min: Final = int(ReduceOp.MIN)
Max: Final = int(ReduceOp.MAX)
Product: Final = int(ReduceOp.PRODUCT)

Tree = Any
"""A pytree: arrays in any nesting of lists, tuples, dictionaries and classes that JAX knows."""


def allreduce(tree: Tree, op: int = Average, name: str = "allreduce") -> Tree:
    """Reduce every array of a tree over all ranks, as one group; all ranks call it with trees of the same shape.

    It works outside of compiled functions and inside of `jax.jit`, but not under `jax.grad`: reduce the gradients.

    Args:
        tree: arrays; on all ranks of the same shapes and types.
        op: Average, Sum, Min, Max or Product.
        name: what the group is called in the timeline; arrays are called after their places in the tree.

    Raises:
        ValueError: the runtime was not started, or `op` is no reduction.
        HorovodInternalError: the ranks do not agree, or one is gone.
    """
    return reduce_tree(tree, op, name, caller="user", ends_step=False)


def reduce_tree(tree: Tree, op: int, name: str, *, caller: str, ends_step: bool) -> Tree:
    """As `allreduce`.

    Args:
        caller: who asks, one of vocabulary.CALLERS.
        ends_step: whether a step of the training ends with it.
    """
    ranks = size()
    named, structure = _flattened(tree, name)
    leaves = [leaf for _, leaf in named]
    names = [said for said, _ in named]
    if not leaves or (ranks == 1 and not ends_step):
        return tree

    def on_the_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        steps.reduction_begins()
        with calling(caller, located=False):
            reduced = _reduced(tensors, op, names)
        if ends_step:
            steps.step_ends()
        return reduced

    if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        reduced = on_the_host([to_tensor(leaf) for leaf in leaves])
        return structure.unflatten([to_array(tensor, leaf) for tensor, leaf in zip(reduced, leaves, strict=True)])

    def called_back(*arrays: Any) -> list[np.ndarray]:
        tensors = on_the_host([array_to_tensor(array) for array in arrays])
        return [tensor_to_array(tensor, leaf.dtype) for tensor, leaf in zip(tensors, leaves, strict=True)]

    wanted = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    return structure.unflatten(io_callback(called_back, wanted, *leaves, ordered=True))


def _reduced(tensors: Sequence[torch.Tensor], op: int, names: Sequence[str]) -> list[torch.Tensor]:
    handles = [
        reduce_operations.allreduce_async(tensor, name=name, op=op) for tensor, name in zip(tensors, names, strict=True)
    ]
    return [synchronize(handle) for handle in handles]


def broadcast(tree: Tree, root_rank: int = 0, name: str = "broadcast") -> Tree:
    """The tree of `root_rank`, on all ranks; outside of compiled functions.

    Raises:
        TypeError: it is called inside of a compiled function.
    """
    return _each(tree, name, lambda tensor, said: gathering.broadcast_async(tensor, root_rank, said))


def broadcast_parameters(parameters: Tree, root_rank: int = 0) -> Tree:
    """Parameters, or the state of an optimizer, of `root_rank`; returned, since arrays of JAX cannot be written to.

    Raises:
        TypeError: it is called inside of a compiled function.
    """
    with calling("parameters", located=False):
        return broadcast(parameters, root_rank, "parameters")


def allgather(tree: Tree, name: str = "allgather") -> Tree:
    """Arrays of all ranks behind each other, along the first dimension, in which they may differ; outside of compiled functions.

    Raises:
        TypeError: it is called inside of a compiled function.
    """
    return _each(tree, name, gathering.allgather_async)


def _each(tree: Tree, name: str, start: Any) -> Tree:
    named, structure = _flattened(tree, name)
    if any(isinstance(leaf, jax.core.Tracer) for _, leaf in named):
        raise TypeError(f"{name} inside of a compiled function: call it outside; allreduce works in both places")
    handles = [start(to_tensor(jax.numpy.asarray(leaf)), said) for said, leaf in named]
    results = [synchronize(handle) for handle in handles]
    return structure.unflatten([to_array(tensor, leaf) for tensor, (_, leaf) in zip(results, named, strict=True)])


def _flattened(tree: Tree, name: str) -> tuple[list[tuple[str, Any]], Any]:
    """Leaves with names after their places, the same on all ranks, and the structure."""
    placed, structure = jax.tree_util.tree_flatten_with_path(tree)
    named = [
        (f"{name}/{jax.tree_util.keystr(path, simple=True, separator='/')}" if path else name, leaf)
        for path, leaf in placed
    ]
    return named, structure
