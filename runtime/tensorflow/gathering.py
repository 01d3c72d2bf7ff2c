"""Allgather, broadcast, alltoall and join of TensorFlow's tensors."""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
import torch

from ..core.process_sets import ProcessSet, global_process_set
from ..torch import gathering as torch_gathering
from ..torch import reduce_operations as torch_reductions
from ..torch.mpi_ops import join as torch_join
from ..torch.submission import synchronize, wait_for_all
from .operands import check_dtype, differentiable, to_tensor, to_tensors
from .reduce_operations import gradient_of_gathering
from .running import public, require_registered, rows_unknown, run, settle_name
from .values import MOVABLE


def _gather(tensors: Sequence[Any], name: str | None, process_set: ProcessSet, *, grouped: bool) -> list[Any]:
    check_dtype(tensors, MOVABLE, "allgather")
    require_registered(process_set)

    def body(given: list[Any]) -> Any:
        if grouped:
            return torch_gathering.grouped_allgather(given, name, process_set)
        return [torch_gathering.allgather(given[0], name, process_set)]

    def forward(*inputs: Any) -> list[Any]:
        return run(body, inputs, [(tensor.dtype, rows_unknown(tensor)) for tensor in inputs])

    def backward(*upstream: Any, results: Any) -> list[Any]:
        del results
        return gradient_of_gathering(upstream, tensors, f"{name}.gradient" if name else None, process_set)

    return differentiable(forward, backward, tensors)


@public  # type: ignore[untyped-decorator]
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,  # noqa: FBT001, FBT002  Horovod's signature
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenate the tensors of all ranks along the first dimension, which may differ by rank; differentiable."""
    tensor = to_tensor(tensor)
    name = settle_name("Allgather", name, [tensor], ignore_name_scope=ignore_name_scope)
    return _gather([tensor], name, process_set, grouped=False)[0]


@public  # type: ignore[untyped-decorator]
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,  # noqa: FBT001, FBT002
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gather several tensors, which become ready together; differentiable."""
    given = to_tensors(tensors, "grouped_allgather")
    if not given:
        return tensors
    name = settle_name("GroupedAllgather", name, given, ignore_name_scope=ignore_name_scope)
    return _gather(given, name, process_set, grouped=True)


@public  # type: ignore[untyped-decorator]
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,  # noqa: FBT001, FBT002
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`root_rank`'s tensor, on all ranks; differentiable.  The root is a rank of the job, in a process set, too."""
    tensor = to_tensor(tensor)
    check_dtype([tensor], MOVABLE, "broadcast")
    require_registered(process_set)
    name = settle_name("Broadcast", name, [tensor], ignore_name_scope=ignore_name_scope)

    def body(given: list[Any]) -> list[Any]:
        return [torch_gathering.broadcast(given[0], root_rank, name, process_set)]

    def forward(*inputs: Any) -> list[Any]:
        return run(body, inputs, [(each.dtype, each.shape) for each in inputs])

    def backward(*upstream: Any, results: Any) -> list[Any]:
        del results

        def reduce(given: list[Any]) -> list[Any]:
            reduced = torch_reductions.allreduce(
                given[0], name=f"{name}.gradient" if name else None, process_set=process_set
            )
            return [reduced if global_process_set.rank() == root_rank else reduced.zero_()]

        return run(reduce, upstream, [(tensor.dtype, tensor.shape)])

    return differentiable(forward, backward, [tensor])[0]


@public  # type: ignore[untyped-decorator]
def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrite variables on all ranks with those of `root_rank`; returns their new values.

    Raises:
        ValueError: something is no variable.
    """
    given = list(variables)
    for variable in given:
        if not hasattr(variable, "assign"):
            raise ValueError(f"broadcast_ takes variables, not {type(variable).__name__}")
    require_registered(process_set)
    tensors = [to_tensor(variable) for variable in given]
    check_dtype(tensors, MOVABLE - {tf.int16, tf.uint16}, "broadcast_")
    values = broadcast_values(tensors, root_rank, name, process_set)
    made = []
    for variable, value in zip(given, values, strict=True):
        with tf.control_dependencies([variable.assign(value)] if not tf.executing_eagerly() else []):
            if tf.executing_eagerly():
                variable.assign(value)
            made.append(tf.identity(value))
    return made


def broadcast_values(tensors: Sequence[Any], root_rank: int, name: str | None, process_set: ProcessSet) -> list[Any]:
    """The root's tensors, all asked for together."""
    if not tensors:
        return []
    name = settle_name("Broadcast", name, tensors)

    def body(given: list[Any]) -> list[Any]:
        handles = [
            torch_gathering.broadcast_async(tensor, root_rank, f"{name}.{number}" if name else None, process_set)
            for number, tensor in enumerate(given)
        ]
        wait_for_all(handles)
        return [synchronize(handle) for handle in handles]

    return run(body, tensors, [(tensor.dtype, tensor.shape) for tensor in tensors])


@public  # type: ignore[untyped-decorator]
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,  # noqa: FBT001, FBT002
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send a part of `tensor` to every rank; differentiable.

    Args:
        splits: rows for each rank, in order; None for equal parts.

    Returns:
        What came from all ranks, in rank order; with `splits` also how many rows came from each.
    """
    tensor = to_tensor(tensor)
    check_dtype([tensor], MOVABLE, "alltoall")
    require_registered(process_set)
    name = settle_name("Alltoall", name, [tensor], ignore_name_scope=ignore_name_scope)
    inputs = [tensor] if splits is None else [tensor, tf.cast(splits, tf.int32)]
    output, received = _exchange(inputs, name, process_set)
    return output if splits is None else (output, received)


def _exchange(inputs: Sequence[Any], name: str | None, process_set: ProcessSet) -> list[Any]:
    tensor = inputs[0]

    def body(given: list[Any]) -> list[Any]:
        handle = torch_gathering.alltoall_async(given[0], given[1] if len(given) > 1 else None, name, process_set)
        return list(synchronize(handle))

    def forward(*given: Any) -> list[Any]:
        count = tf.TensorShape([process_set.size()])
        return run(body, given, [(tensor.dtype, rows_unknown(tensor)), (tf.int32, count)])

    def backward(*upstream: Any, results: Any) -> list[Any]:
        returned, _ = _exchange([upstream[0], results[1]], f"{name}.gradient" if name else None, process_set)
        missing = tf.shape(tensor)[0] - tf.shape(returned)[0]  # rows that were not sent have no gradient
        filling = tf.zeros(tf.concat([[missing], tf.shape(tensor)[1:]], 0), tensor.dtype)
        whole = tf.concat([returned, filling], 0)
        whole.set_shape(tensor.shape)
        return [whole, None][: len(inputs)]

    return differentiable(forward, backward, inputs)


@public  # type: ignore[untyped-decorator]
def join() -> Any:
    """Stop to contribute, because this rank has no more data, and wait until all ranks have.

    Returns:
        The rank that joined last, the same on all ranks.
    """

    def body(_: list[Any]) -> list[Any]:
        return [torch.tensor(torch_join(), dtype=torch.int32, device="cpu")]

    return run(body, [], [(tf.int32, tf.TensorShape([]))])[0]
