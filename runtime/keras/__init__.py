"""Horovod's Keras API: `import tlkit.runtime.keras as hvd`, `import horovod.keras` or `import horovod.tensorflow.keras`.

Keras 3 is one library with several backends, and so is this: TensorFlow, PyTorch and JAX, whichever Keras uses.
"""

# Before the rest, which cannot be imported without Keras.
from . import needs as needs

# isort: split
from ..core.arguments import Adasum, Average, Max, Min, Product, Sum
from ..core.errors import HorovodInternalError
from ..core.process_sets import ProcessSet, global_process_set
from ..torch.basics import (
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    dump_timeline,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from ..torch.functions import allgather_object, broadcast_object
from ..torch.mpi_ops import barrier, join
from . import callbacks, elastic
from .compression import Compression
from .optimizer import DistributedOptimizer, PartialDistributedOptimizer
from .saving import load_model
from .starting import init
from .values import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    reducescatter,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "dump_timeline",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
