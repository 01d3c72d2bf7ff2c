"""Collectives of Keras: of values by whatever backend there is, of variables on all of them alike."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..core.arguments import Average, resolve_op
from ..core.calls import calling
from ..core.process_sets import ProcessSet, global_process_set
from ..torch import gathering, reduce_operations, scattering
from ..torch.arrays import array_to_tensor, tensor_to_array
from ..torch.submission import synchronize, wait_for_all
from .compression import Compression
from .library import is_tensor, keras, to_numpy


def _on_tensorflow() -> Any:
    """The operations of TensorFlow, where Keras uses it; they work inside graphs as well."""
    if keras.backend.backend() != "tensorflow":
        return None
    from .. import tensorflow as operations  # noqa: PLC0415  with this backend alone

    return operations


def _array(value: Any) -> Any:
    return to_numpy(value) if is_tensor(value) else np.asarray(value)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,  # noqa: FBT001  Horovod's signature
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce a value over all ranks: a tensor with the TensorFlow backend, else an array."""
    scales = (prescale_factor, postscale_factor)
    operations = _on_tensorflow()
    resolved = resolve_op(op, average, process_set)
    if operations is not None:
        return operations.allreduce(
            value, None, "", "", compression, int(resolved), *scales, name=name, process_set=process_set
        )
    array = _array(value)
    reduced = reduce_operations.allreduce(
        array_to_tensor(array), None, name, compression, int(resolved), *scales, process_set
    )
    return tensor_to_array(reduced, array.dtype)


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Concatenate the values of all ranks along the first dimension."""
    operations = _on_tensorflow()
    if operations is not None:
        return operations.allgather(value, name, process_set=process_set)
    array = _array(value)
    return tensor_to_array(gathering.allgather(array_to_tensor(array), name, process_set), array.dtype)


def broadcast(value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """`root_rank`'s value, on all ranks."""
    operations = _on_tensorflow()
    if operations is not None:
        return operations.broadcast(value, root_rank, name, process_set=process_set)
    array = _array(value)
    return tensor_to_array(gathering.broadcast(array_to_tensor(array), root_rank, name, process_set), array.dtype)


def reducescatter(
    value: Any, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> Any:
    """Reduce a value over all ranks and return this rank's rows of the result."""
    operations = _on_tensorflow()
    if operations is not None:
        return operations.reducescatter(value, op=op, name=name, process_set=process_set)
    array = _array(value)
    scattered = scattering.reducescatter(array_to_tensor(array), name, None, op, process_set)
    return tensor_to_array(scattered, array.dtype)


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,  # noqa: FBT001, FBT002  Horovod's signature
) -> None:
    """Overwrite variables on all ranks with those of `root_rank`.

    Args:
        variables: of Keras, or of TensorFlow with that backend; in the same order on all ranks.
        root_rank: a rank of the job, in a process set, too.
        process_set: the ranks that take part.
        inplace: taken for compatibility.
    """
    del inplace
    given = list(variables)
    arrays = [to_numpy(variable) for variable in given]
    with calling("parameters"):
        handles = [
            gathering.broadcast_async(array_to_tensor(array), root_rank, f"variables.{number}", process_set)
            for number, array in enumerate(arrays)
        ]
    wait_for_all(handles)
    for variable, array, handle in zip(given, arrays, handles, strict=True):
        variable.assign(tensor_to_array(synchronize(handle), array.dtype))


def broadcast_global_variables(root_rank: int) -> None:
    """Variables of a graph of TensorFlow 1, which Keras 3 has none of.

    Raises:
        RuntimeError: always.
    """
    del root_rank
    raise RuntimeError(
        "Keras 3 has no global variables: use hvd.callbacks.BroadcastGlobalVariablesCallback(0), or "
        "hvd.broadcast_variables(model.variables, root_rank)"
    )


def average_of(values: Sequence[float], name: str) -> list[float]:
    """Averages of numbers over all ranks, in one collective."""
    if not values:
        return []
    mine = array_to_tensor(np.array(values, dtype=np.float64))
    averaged: list[float] = reduce_operations.allreduce(mine, name=name, op=Average).tolist()
    return averaged
