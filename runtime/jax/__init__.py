"""Data-parallel training in JAX: `import tlkit.runtime.jax as hvd`, in a process a rank, as `tl-run` starts them."""

# ruff: noqa: E402  what is missing is said before anything needs it
from . import needs

needs.check()

from ..core.errors import HorovodInternalError
from ..torch.basics import is_initialized, local_rank, local_size, rank, size
from .basics import init, shutdown
from .operations import (
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allreduce,
    broadcast,
    broadcast_parameters,
)
from .optimizer import DistributedOptimizer
from .steps import batches

__all__ = [
    "Average",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "batches",
    "broadcast",
    "broadcast_parameters",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]
