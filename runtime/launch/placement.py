"""Which rank runs on which host, and how it is told so."""

import os
import secrets
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from ...timeline.errors import UsageError
from ..core.handshake import SECRET_VARIABLE
from ..core.slurm import allocated_hosts
from .hosts import is_local

LOOPBACK: Final = "127.0.0.1"

_REACH_TIMEOUT_S: Final = 10.0
_REACH_TRIES: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """The place of one rank."""

    rank: int
    host: str
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return is_local(self.host)


def place(hosts: Sequence[tuple[str, int]], ranks: int) -> list[Slot]:
    """Fill the hosts with exactly `ranks` ranks, in the given order.

    Args:
        hosts: name and slots of each host.

    Raises:
        UsageError: too few slots.
    """
    slots = sum(count for _, count in hosts)
    if ranks > slots:
        raise UsageError(f"Requested more processes ({ranks}) than there are available slots ({slots})")
    free: dict[str, int] = {}
    for host, count in hosts:
        free[host] = free.get(host, 0) + count
    counts: dict[str, int] = {}
    left = ranks
    for host, count in free.items():
        counts[host] = min(count, left)
        left -= counts[host]
    placed: list[Slot] = []
    for index, (host, count) in enumerate(counts.items()):
        for local_rank in range(count):
            sizes = list(counts.values())
            placed.append(
                Slot(
                    rank=len(placed),
                    host=host,
                    local_rank=local_rank,
                    local_size=count,
                    cross_rank=sum(size > local_rank for size in sizes[:index]),
                    cross_size=sum(size > local_rank for size in sizes),
                )
            )
    return placed


def master_address(slots: Sequence[Slot]) -> str:
    """Where the ranks meet: an address of rank 0's host that all of them reach."""
    if all(slot.is_local for slot in slots):
        return LOOPBACK
    if not slots[0].is_local:
        return slots[0].host
    return address_towards(next(slot.host for slot in slots if not slot.is_local))


def address_towards(host: str) -> str:
    """The address of this machine that packets to `host` carry."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UsageError(f"{host}: {error.strerror or error}; check its name") from error


def environments(
    slots: Sequence[Slot],
    inherited: Mapping[str, str],
    settings: Mapping[str, str],
    address: str,
    port: int,
    *,
    meeting_port: int | None = None,
    secret: str = "",
) -> list[dict[str, str]]:
    """The environment of every rank: Horovod's names, and torchrun's, so that plain torch.distributed scripts run too.

    What the launcher knows wins over what was inherited: a stale HOROVOD_RANK must not make every rank the same.

    Args:
        port: for a store of torch.distributed, if the script wants one.
        meeting_port: where our rank 0 listens if the ranks are on several hosts; None for the same port.
        secret: of the job, "" for a new one.
    """
    secret = secret or secrets.token_hex(32)
    run_id = secrets.token_hex(8)
    made = []
    for slot in slots:
        environment = {**inherited, **settings}
        environment.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // slot.local_size)))
        numbers = {
            "RANK": slot.rank,
            "SIZE": len(slots),
            "LOCAL_RANK": slot.local_rank,
            "LOCAL_SIZE": slot.local_size,
            "CROSS_RANK": slot.cross_rank,
            "CROSS_SIZE": slot.cross_size,
        }
        environment |= {f"HOROVOD_{name}": str(number) for name, number in numbers.items()}
        environment |= {
            "HOROVOD_HOSTNAME": "localhost" if slot.is_local and address == LOOPBACK else slot.host,
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port if address == LOOPBACK else meeting_port or port),
            "RANK": str(slot.rank),
            "WORLD_SIZE": str(len(slots)),
            "LOCAL_RANK": str(slot.local_rank),
            "LOCAL_WORLD_SIZE": str(slot.local_size),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "TLKIT_RUN_ID": run_id,
            SECRET_VARIABLE: secret,
            "PYTHONUNBUFFERED": "1",
        }
        made.append(environment)
    return made


def free_ports(*, here: bool) -> tuple[int, int]:
    """Two ports for rank 0 to listen at.

    Somebody else could take one before rank 0 does; the kernel hands out ports in an order that makes this unlikely, and
    rank 0 says so clearly if it happens.

    Args:
        here: whether rank 0 runs on this machine; elsewhere one can only guess.
    """
    if not here:
        first = 20000 + 2 * secrets.randbelow(6000)
        return first, first + 1
    with socket.socket() as one, socket.socket() as other:
        one.bind((LOOPBACK, 0))
        other.bind((LOOPBACK, 0))
        return one.getsockname()[1], other.getsockname()[1]


def is_allocated(hosts: Sequence[tuple[str, int]]) -> bool:
    """Whether all of `hosts`, and there are some, belong to the Slurm allocation that this runs in."""
    allocated = {name for name, _ in allocated_hosts(os.environ)}
    return bool(hosts) and allocated.issuperset(name for name, _ in hosts)


def remote_shell(host: str, ssh_port: int | None, ssh_identity: str | None) -> list[str]:
    """The command that runs another command on `host`.

    ssh; srun for a host of the Slurm allocation that this runs in.  TLKIT_REMOTE_SHELL replaces both, with `{host}` for the
    name: `kubectl exec -i {host} --`, `ip netns exec {host}`.
    """
    own = os.environ.get("TLKIT_REMOTE_SHELL", "").strip()
    if own:
        words = [word.replace("{host}", host) for word in shlex.split(own)]
        return words if "{host}" in own else [*words, host]
    if is_allocated([(host, 1)]):
        # All of the step's cores, as ssh would give; srun by itself may bind a single task to one.
        return ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--quiet", f"--nodelist={host}"]
    command = [
        "ssh",
        "-o",
        "PasswordAuthentication=no",
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "ServerAliveInterval=15",
        "-o",
        "ConnectTimeout=10",
    ]
    if ssh_port:
        command += ["-p", str(ssh_port)]
    if ssh_identity:
        command += ["-i", ssh_identity]
    return [*command, host]


def remote_starter() -> list[str]:
    """What the remote shell runs: the same interpreter, which has to be at the same place on all hosts."""
    return [sys.executable, "-m", "tlkit.runtime.launch.remote"]


def check_reachable(shells: Mapping[str, Sequence[str]]) -> None:
    """Make sure that every host answers.

    Args:
        shells: by host, the command that runs another command there.

    Raises:
        UsageError: names the hosts that do not, and what their shells say.
    """

    def complaint(shell: Sequence[str]) -> str:
        said = ""
        for _ in range(_REACH_TRIES):
            try:
                ended = subprocess.run(  # noqa: S603  the shell that the user has chosen
                    [*shell, "true"],
                    capture_output=True,
                    stdin=subprocess.DEVNULL,
                    timeout=_REACH_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                said = f"no answer within {_REACH_TIMEOUT_S:g} s"
                continue
            except OSError as error:
                return f"{shell[0]}: {error.strerror}"
            if ended.returncode == 0:
                return ""
            lines = ended.stderr.decode(errors="replace").strip().splitlines()
            said = lines[-1] if lines else f"exit status {ended.returncode}"
        return said

    with ThreadPoolExecutor(max(1, len(shells))) as pool:
        complaints = dict(zip(shells, pool.map(complaint, shells.values()), strict=True))
    bad = [f"{host} ({said})" for host, said in complaints.items() if said]
    if bad:
        raise UsageError(f"cannot reach {', '.join(bad)}: ssh has to work there without a password")
