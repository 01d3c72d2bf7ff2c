"""Which rank this process is, told by whoever started it.

Understands `tl-run` and Horovod (HOROVOD_*), Open MPI, torchrun, PMI (MPICH, Intel MPI) and Slurm.  A process that nobody
launched is rank 0 of 1.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...timeline.errors import UsageError
from .slurm import meeting_point


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """What the launcher's environment says."""

    launcher: str
    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    master_address: str | None
    """Where rank 0 can be met, if the launcher says so."""
    master_port: int | None
    job_id: str
    """The same text on all ranks of the job, "" if the launcher has none."""


#: launcher, then its variables for rank, size, local rank, local size and job
_LAUNCHERS: Final = (
    ("tl-run", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "TLKIT_RUN_ID"),
    (
        "mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMIX_NAMESPACE",
    ),
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
    ("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID"),
    ("srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_JOB_ID"),
)


def _integer(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if text is None or not text.strip():
        return None
    try:
        return int(text)
    except ValueError:
        return None


def read_launched(environment: Mapping[str, str] = os.environ) -> Launched:
    """Find out who launched this process and as what.

    Raises:
        UsageError: rank and size contradict each other.
    """
    found: tuple[str, int, int, int | None, int | None, str] = ("none", 0, 1, None, None, "")
    for launcher, rank_name, size_name, local_rank_name, local_size_name, job_name in _LAUNCHERS:
        rank, size = _integer(environment, rank_name), _integer(environment, size_name)
        if rank is None or size is None:
            continue
        # An interactive Slurm allocation sets these for the shell too; only srun's tasks have a step.
        if launcher == "srun" and "SLURM_STEP_ID" not in environment:
            continue
        if not 0 <= rank < size:
            raise UsageError(
                f"{rank_name}={rank} does not fit {size_name}={size}: unset both, or let a launcher set them"
            )
        local_rank = _integer(environment, local_rank_name)
        local_size = _integer(environment, local_size_name)
        found = (launcher, rank, size, local_rank, local_size, environment.get(job_name, ""))
        break
    launcher, rank, size, local_rank, local_size, job_id = found
    address = environment.get("HOROVOD_GLOO_RENDEZVOUS_ADDR") or environment.get("MASTER_ADDR")
    port = _integer(environment, "HOROVOD_GLOO_RENDEZVOUS_PORT") or _integer(environment, "MASTER_PORT")
    if launcher == "srun":
        said = meeting_point(environment)
        address, port = address or (said and said[0]), port or (said and said[1])
    return Launched(
        launcher=launcher,
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        master_address=address,
        master_port=port,
        job_id=job_id,
    )


def launched_from(communicator: Any) -> Launched:
    """What an mpi4py communicator says: its ranks are the job."""
    return Launched(
        launcher="mpirun",
        rank=communicator.rank,
        size=communicator.size,
        local_rank=None,
        local_size=None,
        master_address=None,
        master_port=None,
        job_id="",
    )


def boot_id() -> str:
    """Identity of the running kernel: processes with the same one read the same monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def host_name() -> str:
    """Name of this host, as Horovod's launcher calls it if it does."""
    name = os.environ.get("HOROVOD_HOSTNAME", "")
    return socket.gethostname() if name in {"", "localhost", "127.0.0.1"} else name


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """Where every rank is."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    hosts: tuple[str, ...]
    """Host of each rank."""

    @property
    def is_homogeneous(self) -> bool:
        """Whether every host has the same number of ranks."""
        counts = {self.hosts.count(host) for host in set(self.hosts)}
        return len(counts) == 1

    @staticmethod
    def build(launched: Launched, hosts: tuple[str, ...], local_ranks: tuple[int | None, ...]) -> "Topology":
        """Work out local and cross ranks.

        Args:
            hosts: a name for the host of each rank; ranks with the same name share a host.
            local_ranks: what each rank's launcher said, None where it said nothing; used only if all did.
        """
        counted: dict[str, int] = {}
        by_count = []
        for host in hosts:
            by_count.append(counted.get(host, 0))
            counted[host] = counted.get(host, 0) + 1
        told = [local for local in local_ranks if local is not None]
        local = tuple(told) if len(told) == len(hosts) else tuple(by_count)
        mine = local[launched.rank]
        peers = [rank for rank in range(len(hosts)) if local[rank] == mine]
        return Topology(
            rank=launched.rank,
            size=launched.size,
            local_rank=mine,
            local_size=counted[hosts[launched.rank]],
            cross_rank=peers.index(launched.rank),
            cross_size=len(peers),
            hosts=hosts,
        )
