"""Horovod's TensorFlow API: `import tlkit.runtime.tensorflow as hvd`, or `import horovod.tensorflow as hvd`."""

from typing import Any

# Before the rest, which cannot be imported without TensorFlow.
from . import needs as needs

# isort: split
from ..core.errors import HorovodInternalError
from . import elastic, mpi_ops, util
from .compression import Compression
from .functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from .mpi_ops import *  # noqa: F403  the names of its __all__, as Horovod has them
from .mpi_ops import __all__ as _of_operations
from .optimizer import DistributedOptimizer
from .private import (
    _allreduce,
    _grouped_allreduce,
    _grouped_reducescatter,
    _make_allreduce_grads_fn,
    _reducescatter,
)
from .tape import DistributedGradientTape, PartialDistributedGradientTape
from .util import _executing_eagerly, check_extension, gpu_available, refs_to_vars, split_list, vars_to_refs


def __getattr__(name: str) -> Any:
    """What needs Keras, imported when it is asked for."""
    if name == "SyncBatchNormalization":
        from .sync_batch_norm import SyncBatchNormalization  # noqa: PLC0415

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [  # noqa: PLE0604  the operations' names are a list of their own
    *_of_operations,
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "PartialDistributedGradientTape",
    "_allreduce",
    "_executing_eagerly",
    "_grouped_allreduce",
    "_grouped_reducescatter",
    "_make_allreduce_grads_fn",
    "_reducescatter",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_extension",
    "elastic",
    "gpu_available",
    "mpi_ops",
    "refs_to_vars",
    "split_list",
    "util",
    "vars_to_refs",
]
