"""Lets the ranks of a job find each other: one key-value store that all of them reach.

The store is torch's TCPStore.  Under torchrun the agent already serves one; otherwise rank 0 does, on the address that
the launcher gave.  mpirun and srun give none: on one host rank 0 then leaves its port in a file that only this user can
read, across hosts the user has to name a place.
"""

import errno
import hashlib
import json
import os
import socket
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

# torch.distributed hands these on without exporting them, which type checkers refuse.
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

from ....timeline.errors import RuntimeFailure
from ...core import elastic_client
from ...core.addresses import LOOPBACK, is_loopback
from ...core.topology import Launched

#: How often a rank looks for the file of rank 0.
_POLL_S: Final = 0.02


#: Servers of this process by address and port.  They outlive the engine: a rank that comes back at once, after an
#: initialisation has failed everywhere, would otherwise meet the server of the failed one as it goes away.
_servers: dict[tuple[str, int], TCPStore] = {}
#: The last attempt that this rank took part in, by the prefix of its keys.
_joined: dict[str, int] = {}


def open_store(launched: Launched, timeout_s: float, communicator: Any = None) -> Store:
    """A store shared by all ranks of the job, empty at each initialisation.

    Args:
        timeout_s: how long to wait for the other ranks.
        communicator: mpi4py communicator of the ranks, by which they find each other; None if there is none.

    Raises:
        RuntimeFailure: the ranks cannot meet.
    """
    timeout = timedelta(seconds=timeout_s)
    if launched.size == 1:
        return PrefixStore("tlkit", HashStore())
    try:
        if communicator is not None:
            return _through_communicator(launched, communicator, timeout)
        if launched.master_address and launched.master_port:
            store = _at_known_address(launched, timeout)
        else:
            store = _through_file(launched, timeout_s)
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        prefix = f"tlkit/{launched.job_id}/{restart}/{elastic_client.meeting_round() or 0}"
        return PrefixStore(f"{prefix}/{_attempt(store, prefix, launched.rank, timeout_s)}", store)
    except (RuntimeError, OSError) as error:  # DistStoreError and DistNetworkError are RuntimeErrors
        where = f"{launched.master_address or LOOPBACK}:{launched.master_port or '?'}"
        raise RuntimeFailure(
            f"rank {launched.rank} of {launched.size} did not meet the others at {where} within {timeout_s:g} s: "
            f"{str(error).splitlines()[0]}; check that all ranks were started and can reach that address, "
            "or raise HOROVOD_START_TIMEOUT"
        ) from error


def _attempt(store: Store, prefix: str, rank: int, timeout_s: float) -> int:
    """The number of this initialisation, which rank 0 gives: some have failed, and not all ranks took part in them.

    Raises:
        TimeoutError: rank 0 does not begin another one.
    """
    key = f"{prefix}/attempts"
    if rank == 0:
        return store.add(key, 1)
    deadline = time.monotonic() + timeout_s
    while (latest := store.add(key, 0)) <= _joined.get(prefix, 0):
        if time.monotonic() > deadline:
            raise TimeoutError("rank 0 did not come")
        time.sleep(_POLL_S)
    _joined[prefix] = latest
    return latest


def _at_known_address(launched: Launched, timeout: timedelta) -> Store:
    address, port = launched.master_address or LOOPBACK, launched.master_port or 0
    if launched.rank == 0 and (address, port) in _servers:
        return _servers[address, port]
    agent_serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
    serve = launched.rank == 0 and not agent_serves
    # A script may initialise torch.distributed as well, at the same address: multi_tenant shares the server.
    store = TCPStore(
        address,
        port,
        launched.size,
        is_master=serve,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=_listen_if_own(address, port) if serve else None,
    )
    if serve:
        _servers[address, port] = store
    return store


def _listen_if_own(address: str, port: int) -> int | None:
    """A socket that listens at `address` alone; None to listen at all addresses, where this one is not the host's own."""
    try:
        return _listen(address, port)
    except OSError as error:
        if is_loopback(address) or error.errno == errno.EADDRINUSE:
            raise
        return None


def _listen(address: str, port: int) -> int:
    """A listening socket on one address: TCPStore by itself listens on all of them."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(1024)
        return listener.detach()


def _through_communicator(launched: Launched, communicator: Any, timeout: timedelta) -> Store:
    """MPI knows all ranks: rank 0 serves a store of its own and tells the others where."""
    hosts = communicator.allgather(socket.gethostname())
    address = LOOPBACK if len(set(hosts)) == 1 else socket.gethostbyname(socket.gethostname())
    store = None
    port = 0
    if launched.rank == 0:
        descriptor = _listen(address, 0)
        with socket.socket(fileno=os.dup(descriptor)) as bound:
            port = bound.getsockname()[1]
        store = _serve(address, port, launched.size, timeout, descriptor)
    address, port = communicator.bcast((address, port), 0)
    if store is None:
        store = TCPStore(address, port, launched.size, is_master=False, timeout=timeout, wait_for_workers=False)
    return PrefixStore("tlkit", store)


def _serve(address: str, port: int, size: int, timeout: timedelta, descriptor: int) -> TCPStore:
    return TCPStore(
        address,
        port,
        size,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=descriptor,
    )


def _through_file(launched: Launched, timeout_s: float) -> Store:
    if not launched.job_id or launched.local_size != launched.size:
        raise RuntimeFailure(
            f"{launched.launcher} does not say where rank 0 is: set MASTER_ADDR to its host and MASTER_PORT to a free "
            "port on all ranks (mpirun -x MASTER_ADDR=… -x MASTER_PORT=29500)"
        )
    path = _job_file(launched.job_id)
    timeout = timedelta(seconds=timeout_s)
    if launched.rank == 0:
        for (_, port), store in _servers.items():
            _announce(path, port)
            return store
        descriptor = _listen(LOOPBACK, 0)
        with socket.socket(fileno=os.dup(descriptor)) as bound:
            port = bound.getsockname()[1]
        store = _serve(LOOPBACK, port, launched.size, timeout, descriptor)
        _servers[LOOPBACK, port] = store
        _announce(path, port)
        return store
    port = _wait_for_port(path, timeout_s)
    return TCPStore(LOOPBACK, port, launched.size, is_master=False, timeout=timeout, wait_for_workers=False)


def _job_file(job_id: str) -> Path:
    folder = Path(tempfile.gettempdir()) / f"tlkit-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise RuntimeFailure(f"{folder} belongs to somebody else or others may write to it: remove it")
    return folder / (hashlib.sha256(job_id.encode()).hexdigest()[:24] + ".json")


def _start_time(process_id: int) -> str:
    """When a process started, in kernel ticks; "" if it is gone.  With the process id it names one process for good."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _announce(path: Path, port: int) -> None:
    announced = {"port": port, "process_id": os.getpid(), "started": _start_time(os.getpid())}
    scratch = path.with_suffix(f".{os.getpid()}")
    scratch.write_text(json.dumps(announced), encoding="ascii")
    scratch.replace(path)


def _wait_for_port(path: Path, timeout_s: float) -> int:
    """The port of a rank 0 that is alive: the file may be a leftover of a job with the same id."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            announced = json.loads(path.read_text(encoding="ascii"))
            if announced["started"] and _start_time(announced["process_id"]) == announced["started"]:
                return int(announced["port"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        time.sleep(_POLL_S)
    raise TimeoutError(f"rank 0 left no address in {path}")


def remove_job_file(launched: Launched) -> None:
    """Forget the address that rank 0 left, once all ranks have met."""
    if launched.rank == 0 and launched.job_id and not launched.master_address:
        _job_file(launched.job_id).unlink(missing_ok=True)
