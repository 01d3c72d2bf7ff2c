"""The collectives of `hvd`.  The module has Horovod's name, since scripts import it; the transport is whatever is there."""

from typing import Any, Final

import tensorflow as tf

from ..core.arguments import Adasum, Average, Max, Min, Product, Sum, resolve_op
from ..core.framework import use_framework
from ..core.process_sets import ProcessSet, get_process_set_ids_and_ranks, global_process_set
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
from ..torch.basics import init as _init
from ..torch.mpi_ops import barrier as _barrier
from .errors import as_tensorflows
from .gathering import allgather, alltoall, broadcast, broadcast_, grouped_allgather, join
from .queries import (
    cross_rank_op,
    cross_size_op,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from .reduce_operations import allreduce, grouped_allreduce, grouped_reducescatter, reducescatter
from .running import normalized as _normalize_name


class _Basics:
    """What scripts ask as `mpi_ops._basics`: the functions that move no tensors, as methods."""

    def __getattr__(self, name: str) -> Any:
        """The function of `hvd` with this name."""
        if name == "_get_process_set_ids_and_ranks":
            return get_process_set_ids_and_ranks
        if name.startswith("_") or name not in __all__:
            raise AttributeError(f"tlkit's HorovodBasics has no {name}")
        return globals()[name]


_basics: Final = _Basics()

#: Horovod's compiled library, of which there is none.
MPI_LIB: Final = None


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Start the runtime and meet the other ranks (see `tlkit.runtime.torch.init`)."""
    use_framework("tensorflow", {"tensorflow": tf.__version__})
    _init(comm, process_sets)


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:  # noqa: FBT001  Horovod's signature
    """Which operation `op` and the older `average` ask for."""
    return int(resolve_op(op, average))


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two, as Adasum needs."""
    return num_rank != 0 and num_rank & (num_rank - 1) == 0


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of a process set are here; not inside a graph."""
    with as_tensorflows():
        _barrier(process_set)


__all__ = [
    "MPI_LIB",
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "_basics",
    "_normalize_name",
    "add_process_set",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_rank_op",
    "cross_size",
    "cross_size_op",
    "cuda_built",
    "ddl_built",
    "dump_timeline",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]
