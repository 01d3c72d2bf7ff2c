"""The collectives of `hvd`.  The module has Horovod's name, since scripts import it; the transport is whatever is there."""

import torch

from ..core.calls import calling
from ..core.errors import HorovodInternalError
from ..core.process_sets import ProcessSet, get_process_set_ids_and_ranks, global_process_set
from .basics import (
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    gpu_available,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    num_rank_is_power_2,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from .gathering import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
)
from .operands import Adasum, Average, Max, Min, Product, Sum, handle_average_backwards_compatibility
from .reduce_operations import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    sparse_allreduce_async,
)
from .scattering import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from .submission import agree, poll, require_running, reset_after_join, start_plain, synchronize


def join(device: int = -1) -> int:
    """Stop to contribute, because this rank has no more data, and wait until all ranks have.

    Until then the allreduces of the others go on without this rank, as if it brought zeros.

    Args:
        device: the GPU on which to make the zeros of tensors on GPUs; -1 for the calling thread's current one.

    Returns:
        The rank that joined last, the same on all ranks.
    """
    running = require_running()
    if device < 0 and torch.cuda.is_available():
        device = torch.cuda.current_device()
    running.join_device = torch.device("cpu") if device < 0 else torch.device("cuda", device)
    with calling("join"):
        last: int = agree("join", "join.noname")
    reset_after_join()
    return last


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the process set are here."""
    nothing = torch.empty(0, dtype=torch.uint8, device="cpu")
    with calling("barrier"):
        synchronize(start_plain("barrier", [nothing], [nothing], None, process_set, waits=True))


__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "get_process_set_ids_and_ranks",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "num_rank_is_power_2",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]
