"""Getting all ranks to the same state: variables and objects."""

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from ..core.calls import calling
from ..core.process_sets import ProcessSet, global_process_set
from ..torch import functions as torch_functions
from .errors import as_tensorflows
from .gathering import broadcast_values
from .operands import to_tensor
from .running import public, require_registered


@public  # type: ignore[untyped-decorator]
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,  # noqa: FBT001, FBT002  Horovod's signature
) -> Any:
    """Overwrite variables of TensorFlow or Keras on all ranks with those of `root_rank`.

    Args:
        variables: in the same order on all ranks.
        root_rank: a rank of the job, in a process set, too.
        process_set: the ranks that take part.
        inplace: taken for compatibility.

    Returns:
        None where TensorFlow executes eagerly, else the operation to run.
    """
    del inplace
    given = list(variables)
    require_registered(process_set)
    with calling("parameters"):
        values = broadcast_values([to_tensor(variable) for variable in given], root_rank, None, process_set)
    assigned = [variable.assign(value) for variable, value in zip(given, values, strict=True)]
    return None if tf.executing_eagerly() else tf.group(*[each for each in assigned if each is not None])


def broadcast_global_variables(root_rank: int) -> Any:
    """Overwrite the global variables of a graph of TensorFlow 1 on all ranks with those of `root_rank`.

    Raises:
        RuntimeError: TensorFlow executes eagerly, and has no global variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use `hvd.broadcast_variables(<model/"
            "optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Broadcasts the global variables when a session of TensorFlow 1 begins."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        """Prepare.

        Args:
            root_rank: whose values all ranks take.
            device: taken for compatibility.
        """
        super().__init__()
        del device
        self._root_rank = root_rank
        self._operation: Any = None

    def begin(self) -> None:
        """Make the operation, once a graph."""
        if self._operation is None or self._operation.graph is not tf.compat.v1.get_default_graph():
            self._operation = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run it."""
        del coord
        session.run(self._operation)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`root_rank`'s object, on all ranks.  The ranks of a job trust each other: it travels as a pickle.

    Args:
        obj: what to send; the other ranks may pass anything.
        root_rank: a rank of the job, in a process set, too.
        session: taken for compatibility; no graph is needed.
        name: for the timeline, and to have several calls under way at the same time.
        process_set: the ranks that take part.
    """
    del session
    require_registered(process_set)
    with as_tensorflows():
        return torch_functions.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """`broadcast_object` as a function of the object alone."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Every rank's object, in rank order.  The ranks of a job trust each other: they travel as pickles."""
    del session
    require_registered(process_set)
    with as_tensorflows():
        gathered: list[Any] = torch_functions.allgather_object(obj, name, process_set)
        return gathered
