"""Starting, stopping and asking: the part of `hvd` that moves no tensors."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ...timeline.errors import TlkitError
from .. import tuning
from ..core import engine
from ..core.errors import NOT_INITIALIZED
from ..core.meeting import Wanted, check_ranks
from ..core.process_sets import (
    ProcessSet,
    global_process_set,
    register,
    unregister,
    unregister_all,
)
from ..core.topology import read_launched
from .data_plane import transports
from .data_plane.binding import TorchBinding
from .submission import agree, reset


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Start the runtime and meet the other ranks.  While it runs, add the process sets that are new; all ranks call it.

    Args:
        comm: None for all ranks; an mpi4py communicator, or a list of the ranks of MPI's world, for those alone.
        process_sets: a list of `ProcessSet` to start with, the same on all ranks; or "dynamic", to add and remove sets later.

    Raises:
        ValueError: the ranks could not meet, or do not agree about the process sets.
        HorovodInternalError: the runtime ran, and the ranks want different sets to be added.
        NotImplementedError: a process set is given as a communicator, but `comm` is not.
    """
    is_dynamic = isinstance(process_sets, str)
    if is_dynamic:
        if process_sets.lower() != "dynamic":
            raise ValueError(
                f'Horovod initialization failed: process_sets={process_sets!r} is neither a list nor "dynamic"'
            )
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        process_sets = None
    sets: list[ProcessSet] = list(process_sets or ())
    running = engine.current()
    if running is not None:
        running.warn_if_forked()
        if is_dynamic:
            running.config = replace(running.config, dynamic_process_sets=True)
        _add_to(running, sets)
        return
    try:
        tuning.begin()
        communicator = _communicator_of(comm)
        wanted = _wanted(sets, communicator)
        running = engine.start(TorchBinding, communicator=communicator, wanted=wanted)
    except TlkitError as error:
        raise ValueError(f"Horovod initialization failed: {error}") from error
    global_process_set.set_ranks(running.topology.size)
    numbers = {ranks: number for number, ranks in running.process_sets.items()}
    for process_set, (_, ranks) in zip(sets, wanted, strict=True):
        register(process_set, numbers[tuple(sorted(ranks))], ranks)


def _add_to(running: engine.Engine, sets: Sequence[ProcessSet]) -> None:
    """Give process sets their ids, which may be those of sets that the job has already, while the runtime runs.

    Raises:
        ValueError: they make no sense.
        HorovodInternalError: the ranks want different ones.
    """
    for index, process_set in enumerate(sets):
        ranks = tuple(process_set.ranks or ())
        error = check_ranks(ranks, running.topology.size)
        if process_set.mpi_comm is not None:
            error = "a communicator: those are for the first hvd.init(); call hvd.shutdown() before, or name the ranks"
        elif ranks == running.process_sets[0] or ranks in [tuple(other.ranks or ()) for other in sets[:index]]:
            error = f"a duplicate: ranks {list(ranks)} are a process set already"
        if error:
            raise ValueError(f"process_sets[{index}] is {error}")
    numbers = {ranks: number for number, ranks in running.process_sets.items()}
    for process_set in sets:
        ranks = tuple(process_set.ranks or ())
        known = numbers.get(ranks)
        register(process_set, agree("add_process_set", "process_set", ranks) if known is None else known, ranks)


def _communicator_of(comm: Any) -> Any:
    """The mpi4py communicator that `comm` means, None for all ranks that were started."""
    if comm is None or hasattr(comm, "Get_group"):
        return comm
    ranks = list(comm)
    if not ranks:
        return None
    if any(hasattr(each, "Get_group") for each in ranks):
        raise ValueError(
            "Horovod initialization failed: give one communicator as comm, and the others as "
            "process_sets=[hvd.ProcessSet(comm), ...]"
        )
    if not (transports.mpi.is_built() and read_launched().launcher in {"mpirun", "mpiexec"}):
        return None  # as under Horovod's Gloo, where a list of ranks has no effect
    world = transports.mpi.load_mpi().COMM_WORLD
    return world.Create_group(world.Get_group().Incl(ranks))


def _wanted(sets: list[ProcessSet], communicator: Any) -> list[Wanted]:
    """The process sets by their ranks in the job."""
    wanted: list[Wanted] = []
    for process_set in sets:
        if process_set.mpi_comm is None:
            wanted.append((False, list(process_set.ranks or ())))
            continue
        if communicator is None:
            raise NotImplementedError(
                "process sets given as MPI communicators need a global one: hvd.init(MPI.COMM_WORLD, process_sets=[...])"
            )
        mpi = transports.mpi.load_mpi()
        theirs = process_set.mpi_comm.Get_group()
        ranks = mpi.Group.Translate_ranks(theirs, list(range(theirs.size)), communicator.Get_group())
        wanted.append((True, sorted(ranks)))
    return wanted


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Add a process set while the runtime runs.  All ranks of the job call it, members or not, and wait for each other.

    Raises:
        ValueError: it makes no sense, exists already, or `init` was not called with `process_sets="dynamic"`.
        HorovodInternalError: the ranks ask for different sets.
    """
    running = require_engine()
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if not running.config.dynamic_process_sets:
        raise ValueError(
            "Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow adding process sets after Horovod initialization."
        )
    ranks = tuple(process_set.ranks or ())
    error = check_ranks(ranks, running.topology.size)
    if error:
        raise ValueError(f"the process set is {error}")
    if ranks in running.process_sets.values():
        raise ValueError(f"Attempted to add a duplicate process set: ranks {list(ranks)} are one already")
    register(process_set, agree("add_process_set", "process_set", ranks), ranks)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set.  All ranks of the job call it; what is pending in the set fails.

    Returns:
        Whether it was removed: False for the global set and for one that is not registered.

    Raises:
        ValueError: `init` was not called with `process_sets="dynamic"`.
        HorovodInternalError: the ranks want to remove different sets.
    """
    running = require_engine()
    if not running.config.dynamic_process_sets:
        raise ValueError(
            "Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow removing process sets after Horovod initialization."
        )
    number = process_set.process_set_id
    if number is None or number == 0:
        return False
    agree("remove_process_set", "process_set", (number,))
    running.process_sets.pop(number, None)
    unregister(process_set)
    return True


def shutdown() -> None:
    """End the runtime, here and on all ranks.  Does nothing while it does not run."""
    engine.stop()
    reset()
    unregister_all()


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
        running.timeline.start(file_path, mark_cycles=mark_cycles)
    except TlkitError as error:
        raise ValueError(str(error)) from error


def dump_timeline(why: str = "hvd.dump_timeline() was called") -> bool:
    """Have all ranks set aside what their flight recorders have (HOROVOD_FLIGHT_RECORDER), soon.  One rank's call is enough.

    Args:
        why: what the log and the report say.

    Returns:
        Whether a flight recorder is on.
    """
    return require_engine().timeline.raise_alarm(why)


def stop_timeline() -> None:
    """Finish the timeline.  Does nothing while none is written.

    Raises:
        ValueError: not initialised.
    """
    require_engine().timeline.stop()


def mpi_threads_supported() -> bool:
    """Whether MPI may be called from several threads.

    Raises:
        ValueError: this run does not use MPI.
    """
    require_engine()
    if not mpi_enabled():
        raise ValueError("Horovod MPI is not enabled; Please make sure it's installed and enabled.")
    mpi = transports.mpi.load_mpi()
    return bool(mpi.Query_thread() == mpi.THREAD_MULTIPLE)


def mpi_enabled() -> bool:
    """Whether MPI moves the bytes of this run."""
    running = engine.current()
    return running is not None and "mpi" in running.transports.values()


def mpi_built() -> bool:
    """Whether MPI could."""
    return transports.mpi.is_built()


def gloo_enabled() -> bool:
    """Whether the bytes of this run move without MPI and NCCL: through Gloo, or the memory that ranks of one host share."""
    running = engine.current()
    return running is not None and not {"gloo", "shm"}.isdisjoint(running.transports.values())


def gloo_built() -> bool:
    """Whether Gloo could."""
    return True


def nccl_built() -> int:
    """Version of the NCCL that could move the bytes, as Horovod writes it (2.18.5 is 21805); 0 for none."""
    if not transports.nccl.is_built():
        return 0
    nccl: Any = torch.cuda.nccl
    major, minor, patch = (*nccl.version(), 0, 0)[:3]
    return int(major * 10000 + minor * 100 + patch)


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


def gpu_available(ext_base_name: str = "torch", verbose: bool = False) -> bool:  # noqa: FBT001, FBT002  Horovod's signature
    """Whether there is a GPU."""
    del ext_base_name, verbose
    return torch.cuda.is_available()


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two, as Adasum needs."""
    return num_rank != 0 and num_rank & (num_rank - 1) == 0


def check_extension(*_: object, **__: object) -> None:
    """Horovod checks here that it was compiled; there is nothing to compile."""
