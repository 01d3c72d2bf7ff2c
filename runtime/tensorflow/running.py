"""How an operation runs: at once where TensorFlow executes eagerly, else as a call of Python in the graph.

A graph holds one operation a call, whatever number of tensors it has; where gradients are reduced in groups, one more for each.
Its result has a static shape; and XLA is refused while the function is traced, before any training.
"""

import re
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any, Final

import numpy as np
import tensorflow as tf
import torch
from tensorflow.python.ops import control_flow_util

from ...timeline.record.shard_format import Call
from ..core import calls
from ..core.process_sets import ProcessSet
from ..instrument.phases import reducing
from ..torch.arrays import array_to_tensor
from ..torch.flat import FlatReduction, finish
from .errors import XLA, as_tensorflows
from .values import tensor_to_torch, torch_to_array, torch_to_tensor

Body = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
"""What an operation does with its tensors; hands out as many as were announced."""

Result = tuple[Any, Any]
"""Dtype and static shape of one."""

#: Keeps autograph from rewriting what is ours, which has no conditions on tensors.
public: Final[Any] = tf.autograph.experimental.do_not_convert

_last: "weakref.WeakKeyDictionary[Any, tuple[Any, Any]]" = weakref.WeakKeyDictionary()
"""By graph without a function, in which nothing orders operations: the last one of ours, and the control flow it is in."""
_names: "weakref.WeakKeyDictionary[Any, set[str]]" = weakref.WeakKeyDictionary()
"""By graph: names that are taken."""


def is_compiled_by_xla() -> bool:
    """Whether the function that is being traced is one that XLA is to compile."""
    graph = tf.compat.v1.get_default_graph()
    return not tf.executing_eagerly() and bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def refuse_xla() -> None:
    """Raise if the function that is being traced is one that XLA is to compile.

    Raises:
        NotImplementedError: it is.
    """
    if is_compiled_by_xla():
        raise NotImplementedError(XLA)


def run(body: Body, inputs: Sequence[Any], results: Sequence[Result], call: Call | None = None) -> list[Any]:
    """Run an operation on tensors of TensorFlow; returns its results as such.

    Args:
        body: what it does, on the host.
        call: who asks, as a timeline says; None for the line that is found on the stack.

    Raises:
        NotImplementedError: XLA is to compile the function in which this is.
        Exception: see `as_tensorflows`.
    """
    if tf.executing_eagerly():
        with as_tensorflows():
            done = body([tensor_to_torch(tensor) for tensor in inputs])
        made = [torch_to_tensor(value, dtype) for value, (dtype, _) in zip(done, results, strict=True)]
        return _beside(inputs, made)
    refuse_xla()
    asked = calls.current(blocking=True) if call is None else call
    dtypes = [dtype for dtype, _ in results]

    def in_python(*arrays: Any) -> list[Any]:
        with calls.handing_on(asked), reducing(body) if asked is calls.GRADIENT else nullcontext():
            done = body([array_to_tensor(array) for array in arrays])
        return [torch_to_array(value, dtype) for value, dtype in zip(done, dtypes, strict=True)]

    with tf.control_dependencies(_before()):
        made = list(tf.numpy_function(in_python, list(inputs), dtypes))
    _remember(made)
    for tensor, (_, shape) in zip(made, results, strict=True):
        tensor.set_shape(shape)
    return made


def run_ahead(reductions: Sequence[FlatReduction], inputs: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Reduce the gradients of a step in several groups; returns those of each group.

    In a graph each group is started by an operation of its own as soon as its gradients are there, while the rest of backward
    computes, and one operation waits for all of them: threads of TensorFlow that wait in Python would compute nothing.

    Args:
        inputs: of each reduction.

    Raises:
        NotImplementedError: XLA is to compile the function in which this is.
        Exception: see `as_tensorflows`.
    """
    if tf.executing_eagerly():
        with as_tensorflows():
            for reduction, tensors in zip(reductions, inputs, strict=True):
                reduction.start([tensor_to_torch(tensor) for tensor in tensors])
            done = finish(reductions)
        return [
            _beside(
                tensors, [torch_to_tensor(value, tensor.dtype) for value, tensor in zip(of_one, tensors, strict=True)]
            )
            for of_one, tensors in zip(done, inputs, strict=True)
        ]
    refuse_xla()

    def starting(reduction: FlatReduction) -> Callable[..., Any]:
        def start(*arrays: Any) -> Any:
            reduction.start([array_to_tensor(array) for array in arrays])
            return np.int64(0)

        return start

    flat = [tensor for tensors in inputs for tensor in tensors]
    dtypes = [tensor.dtype for tensor in flat]

    def wait(*_: Any) -> list[Any]:
        with reducing(reductions[0]):
            done = [value for of_one in finish(reductions) for value in of_one]
        return [torch_to_array(value, dtype) for value, dtype in zip(done, dtypes, strict=True)]

    with tf.control_dependencies(_before()):
        started = [
            tf.numpy_function(starting(reduction), list(tensors), tf.int64)
            for reduction, tensors in zip(reductions, inputs, strict=True)
        ]
        made = list(tf.numpy_function(wait, started, dtypes))
    _remember(made)
    for tensor, source in zip(made, flat, strict=True):
        tensor.set_shape(source.shape)
    results = iter(made)
    return [list(islice(results, len(tensors))) for tensors in inputs]


def _beside(inputs: Sequence[Any], made: list[Any]) -> list[Any]:
    """Results on the device of what went in."""
    if not inputs or inputs[0].device.endswith("CPU:0"):
        return made
    with tf.device(inputs[0].device):
        return [tf.identity(tensor) for tensor in made]


def _place() -> tuple[Any, Any] | None:
    """The graph, and the control flow in it, where nothing but us orders operations."""
    graph = tf.compat.v1.get_default_graph()
    if hasattr(graph, "outer_graph"):  # of a function, whose operations run in the order of the program
        return None
    return graph, graph._get_control_flow_context()  # noqa: SLF001  as TensorFlow's own libraries ask


def _before() -> list[Any]:
    place = _place()
    known = None if place is None else _last.get(place[0])
    return [known[0]] if known is not None and place is not None and known[1] is place[1] else []


def _remember(made: Sequence[Any]) -> None:
    place = _place()
    if place is not None and made:
        _last[place[0]] = (made[0].op, place[1])


def normalized(name: str) -> str:
    """A tensor's name as part of an operation's."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def settle_name(kind: str, given: str | None, tensors: Sequence[Any], *, ignore_name_scope: bool = False) -> str | None:
    """The name of an operation: in a graph one that all ranks that trace the same come to; else the one given.

    Args:
        kind: as Horovod's operations are called, such as `Allreduce` or `GroupedAllreduce`.
    """
    if tf.executing_eagerly():
        return given
    name = given
    if name is None:
        ends = [tensors[0].name, *([tensors[-1].name] if kind.startswith("Grouped") else [])]
        name = "_".join([f"Horovod{kind}", *map(normalized, ends)])
    graph = tf.compat.v1.get_default_graph()
    scope = graph.get_name_scope()
    full = name.rpartition("/")[2] if ignore_name_scope else f"{scope}/{name}" if scope else name
    taken = _names.setdefault(graph, set())
    unique, number = full, 0
    while unique in taken:
        number += 1
        unique = f"{full}_{number}"
    taken.add(unique)
    return unique


def require_registered(process_set: ProcessSet) -> None:
    """Raise for a process set that the runtime does not know.

    Raises:
        ValueError: it is not registered.
    """
    if process_set.process_set_id is None:
        raise ValueError(
            "the process set has not been registered, or was removed: give it to hvd.init(process_sets=[...]), or add it with "
            "hvd.add_process_set()"
        )


def rows_unknown(tensor: Any) -> Any:
    """The static shape of a result whose first dimension is known when it is there."""
    shape = tensor.shape
    return tf.TensorShape(None) if shape.rank is None else tf.TensorShape([None, *shape[1:]])
