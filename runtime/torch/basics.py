"""Starting, stopping and asking: the part of `hvd` that moves no tensors."""

import torch

from ...timeline.errors import TlkitError
from .. import engine
from ..errors import NOT_INITIALIZED
from ..process_sets import global_process_set
from .submission import reset_names


def init(comm: object = None, process_sets: object = None) -> None:
    """Start the runtime and meet the other ranks.  Does nothing while it runs.

    Args:
        comm: None for all ranks.
        process_sets: None for the global process set alone.

    Raises:
        ValueError: the ranks could not meet, or `comm` or `process_sets` asks for what this version does not have.
    """
    if comm is not None or process_sets is not None:
        raise ValueError(
            "Horovod initialization failed: this version runs on all ranks with the global process set only; "
            "call hvd.init() without arguments"
        )
    try:
        running = engine.start()
    except TlkitError as error:
        raise ValueError(f"Horovod initialization failed: {error}") from error
    global_process_set.set_ranks(running.topology.size)


def shutdown() -> None:
    """End the runtime, here and on all ranks.  Does nothing while it does not run."""
    engine.stop()
    reset_names()


def is_initialized() -> bool:
    """Whether `init` was called and `shutdown` was not."""
    return engine.current() is not None


def require_engine() -> engine.Engine:
    """The running engine.

    Raises:
        ValueError: `init` was not called.
    """
    running = engine.current()
    if running is None:
        raise ValueError(NOT_INITIALIZED)
    return running


def rank() -> int:
    """Number of this process among all."""
    return require_engine().topology.rank


def size() -> int:
    """How many processes there are."""
    return require_engine().topology.size


def local_rank() -> int:
    """Number of this process on its host."""
    return require_engine().topology.local_rank


def local_size() -> int:
    """How many processes this host has."""
    return require_engine().topology.local_size


def cross_rank() -> int:
    """Number of this host among those that have a process of this local rank."""
    return require_engine().topology.cross_rank


def cross_size() -> int:
    """How many hosts have a process of this local rank."""
    return require_engine().topology.cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have the same number of processes."""
    return require_engine().topology.is_homogeneous


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:  # noqa: FBT001, FBT002  Horovod's signature
    """Write the timeline to `file_path` from now on; call it on all ranks.

    Raises:
        ValueError: not initialised, HOROVOD_TIMELINE was not set, or the file cannot be written.
    """
    running = require_engine()
    if running.config.timeline is None:
        raise ValueError("Set HOROVOD_TIMELINE=DYNAMIC to enable dynamic timeline usage.")
    try:
        running.start_timeline(file_path, mark_cycles=mark_cycles)
    except TlkitError as error:
        raise ValueError(str(error)) from error


def stop_timeline() -> None:
    """Finish the timeline.  Does nothing while none is written.

    Raises:
        ValueError: not initialised.
    """
    require_engine().stop_timeline()


def mpi_threads_supported() -> bool:
    """Whether MPI may be called from several threads.

    Raises:
        ValueError: always, since there is no MPI in this version.
    """
    require_engine()
    raise ValueError("Horovod MPI is not enabled; Please make sure it's installed and enabled.")


def mpi_enabled() -> bool:
    """Whether MPI moves the bytes of this run."""
    return False


def mpi_built() -> bool:
    """Whether MPI could."""
    return False


def gloo_enabled() -> bool:
    """Whether Gloo moves the bytes of this run."""
    return engine.current() is not None


def gloo_built() -> bool:
    """Whether Gloo could."""
    return True


def nccl_built() -> int:
    """Version of the NCCL that could move the bytes, 0 for none."""
    return 0


def ddl_built() -> bool:
    """Whether IBM DDL could move the bytes."""
    return False


def ccl_built() -> bool:
    """Whether oneCCL could move the bytes."""
    return False


def cuda_built() -> bool:
    """Whether tensors on CUDA devices are taken."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Whether tensors on ROCm devices are taken."""
    return torch.version.hip is not None


def check_extension(*_: object, **__: object) -> None:
    """Horovod checks here that it was compiled; there is nothing to compile."""
