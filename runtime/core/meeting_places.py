"""Where the ranks of a job find rank 0, and what they have to know there.

On one host it is a Unix socket in a folder of this user, and the kernel says whose process is at the other end.  Across hosts
it is an address, and a secret that the launcher has put into the environment of the ranks, or that MPI has passed around.
"""

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ...timeline.errors import RuntimeFailure
from . import elastic_client
from .addresses import is_loopback, own_address
from .connections import connect_within_host, listen, listen_within_host, socket_path
from .door import Door
from .handshake import SECRET_VARIABLE, Caller, NotOfThisJob, Proof, Purpose, introduce
from .topology import Launched, boot_id

_POLL_S: Final = 0.02
#: How often a rank that is refused tries again: rank 0 may have been closing its door after a failed start.
_REFUSALS: Final = 3
_REFUSAL_PAUSE_S: Final = 0.3
_MAX_ANNOUNCED_NBYTES: Final = 300


class Board(Protocol):
    """A key-value store that strangers can read and write as well."""

    def set(self, key: str, value: str, /) -> None:
        """Set a key."""

    def get(self, key: str, /) -> bytes:
        """The value of a key; blocks until it is set."""


class MeetingPlace(Protocol):
    """Where rank 0 waits for the others."""

    def open(self, timeout_s: float) -> Any:
        """On rank 0: a context manager that gives a `Door`.

        Raises:
            RuntimeFailure: rank 0 cannot wait there.
        """

    def call(self) -> tuple[socket.socket, Proof]:
        """On the others: a connection to rank 0, and what to prove.

        Raises:
            OSError: rank 0 does not listen yet.
            NotOfThisJob: another process listens there.
        """


@dataclass(frozen=True, slots=True)
class OnThisHost:
    """All ranks are on this host."""

    name: str
    """The same on all ranks, and no other job's."""
    secret: str

    @contextmanager
    def open(self, timeout_s: float) -> Iterator[Door]:
        """See `MeetingPlace`."""
        with listen_within_host(socket_path(self.name), timeout_s) as listener, Door([(listener, self._proof)]) as door:
            yield door

    def call(self) -> tuple[socket.socket, Proof]:
        """See `MeetingPlace`."""
        return connect_within_host(socket_path(self.name)), self._proof

    @property
    def _proof(self) -> Proof:
        return Proof.of(self.secret, self.name, "ranks")


@dataclass(frozen=True, slots=True)
class AtAddress:
    """All ranks have been told where rank 0 is."""

    address: str
    port: int
    secret: str
    realm: str
    timeout_s: float

    @contextmanager
    def open(self, timeout_s: float) -> Iterator[Door]:
        """See `MeetingPlace`."""
        del timeout_s
        with Door([(listen(self.address, self.port), self.proof)]) as door:
            yield door

    def call(self) -> tuple[socket.socket, Proof]:
        """See `MeetingPlace`."""
        return socket.create_connection((self.address, self.port), timeout=self.timeout_s), self.proof

    @property
    def proof(self) -> Proof:
        """What both sides have to know."""
        return Proof.of(self.secret, f"{self.address}:{self.port}", self.realm)


@dataclass(frozen=True, slots=True)
class Announced:
    """Rank 0 writes its address on a board, which the others read again and again: it may be that of an earlier start."""

    board: Board
    address: str
    secret: str
    realm: str
    timeout_s: float

    @contextmanager
    def open(self, timeout_s: float) -> Iterator[Door]:
        """See `MeetingPlace`."""
        listener = listen(self.address)
        port = listener.getsockname()[1]
        place = AtAddress(self.address, port, self.secret, self.realm, timeout_s)
        with Door([(listener, place.proof)]) as door:
            self.board.set(self._key, f"{self.address}\n{port}")
            yield door

    def call(self) -> tuple[socket.socket, Proof]:
        """See `MeetingPlace`."""
        address, port = _read_announced(self.board.get(self._key))
        return AtAddress(address, port, self.secret, self.realm, self.timeout_s).call()

    @property
    def _key(self) -> str:
        return f"tlkit/{self.realm}"


def _read_announced(text: bytes) -> tuple[str, int]:
    if len(text) > _MAX_ANNOUNCED_NBYTES:
        raise NotOfThisJob("the store of the job contains something other than rank 0's address")
    address, _, port = text.decode("ascii", "replace").partition("\n")
    if not port.isdigit():
        raise NotOfThisJob("the store of the job contains something other than rank 0's address")
    return address, int(port)


def enter(place: MeetingPlace, purpose: Purpose, caller: Caller, timeout_s: float) -> socket.socket:
    """A connection to rank 0 that both sides have proved to belong to the job.

    Raises:
        RuntimeFailure: rank 0 does not come, or does not know us.
    """
    deadline = time.monotonic() + timeout_s
    refused = 0
    while True:
        try:
            return _try_to_enter(place, purpose, caller, deadline)
        except NotOfThisJob as error:
            refused += 1
            if refused >= _REFUSALS or time.monotonic() > deadline:
                raise RuntimeFailure(
                    f"rank {caller.rank} and rank 0 have different secrets ({error}): {SECRET_VARIABLE} has to be the same on "
                    "all ranks of a job, and only there"
                ) from error
            time.sleep(_REFUSAL_PAUSE_S)
        except OSError as error:
            if time.monotonic() > deadline:
                raise RuntimeFailure(
                    f"rank {caller.rank} did not meet rank 0 within {timeout_s:g} s ({error}): check that all ranks were started "
                    "and can reach its host, name the interface in HOROVOD_GLOO_IFACE, or raise HOROVOD_START_TIMEOUT"
                ) from error
            time.sleep(_POLL_S)


def _try_to_enter(place: MeetingPlace, purpose: Purpose, caller: Caller, deadline: float) -> socket.socket:
    connection, proof = place.call()
    try:
        introduce(connection, proof, purpose, caller, max(deadline - time.monotonic(), 1.0))
    except BaseException:
        connection.close()
        raise
    connection.settimeout(None)
    return connection


def find_place(
    launched: Launched, timeout_s: float, communicator: Any, open_board: Callable[[], Board]
) -> MeetingPlace:
    """Where the ranks of this job meet.

    Args:
        communicator: mpi4py communicator of the ranks; None if there is none.
        open_board: opens the store at MASTER_ADDR and MASTER_PORT.

    Raises:
        RuntimeFailure: nobody has said where rank 0 is, or what the ranks' secret is.
    """
    if communicator is not None:
        return _place_by_mpi(launched, communicator, timeout_s)
    realm = _realm(launched)
    secret = os.environ.get(SECRET_VARIABLE, "").strip()
    address, port = launched.master_address, launched.master_port
    if _is_one_host(launched):
        if not launched.job_id and not port:
            raise RuntimeFailure(_nowhere(launched))
        return OnThisHost(f"{launched.launcher} {realm} {address}:{port}", secret)
    if not address or not port:
        raise RuntimeFailure(_nowhere(launched))
    if not secret:
        raise RuntimeFailure(
            f"{launched.launcher} does not give the ranks on several hosts a shared secret: set "
            f"{SECRET_VARIABLE} to the same random text on all of them (openssl rand -hex 32), or start them with tl-run"
        )
    if launched.launcher == "tl-run":
        return AtAddress(address, port, secret, realm, timeout_s)
    return Announced(open_board(), _numeric(address), secret, realm, timeout_s)


def _realm(launched: Launched) -> str:
    """Names one meeting of one job."""
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"{launched.job_id}/{restart}/{elastic_client.meeting_round() or 0}/{launched.size}"


def _is_one_host(launched: Launched) -> bool:
    if launched.master_address and is_loopback(launched.master_address):
        return True
    if launched.launcher == "srun" and os.environ.get("SLURM_STEP_NUM_NODES") == "1":
        return True
    return launched.local_size == launched.size


def _nowhere(launched: Launched) -> str:
    return (
        f"{launched.launcher} does not specify rank 0's address: set MASTER_ADDR to its host and MASTER_PORT to a free "
        "port on all ranks (mpirun -x MASTER_ADDR=… -x MASTER_PORT=29500)"
    )


def _place_by_mpi(launched: Launched, communicator: Any, timeout_s: float) -> MeetingPlace:
    """MPI knows all ranks, and passes a secret around."""
    hosts = communicator.allgather((socket.gethostname(), boot_id()))
    secret = communicator.bcast(secrets.token_hex(32), 0)
    if len(set(hosts)) == 1:
        return OnThisHost(f"mpi {secret}", secret)
    another = next((host for host, boot in hosts if (host, boot) != hosts[0]), "")
    # A host's own name may stand for 127.0.1.1.
    address = own_address(another) or _numeric(socket.gethostname())
    return _AnnouncedByMpi(communicator, launched.rank, address, secret, timeout_s)


class _AnnouncedByMpi:
    """Rank 0 tells its address to all others by MPI."""

    def __init__(self, communicator: Any, rank: int, address: str, secret: str, timeout_s: float) -> None:
        self._secret, self._timeout_s = secret, timeout_s
        self._listener = listen(address) if rank == 0 else None
        port = self._listener.getsockname()[1] if self._listener is not None else 0
        address, port = communicator.bcast((address, port), 0)
        self._place = AtAddress(address, port, secret, "mpi", timeout_s)

    @contextmanager
    def open(self, timeout_s: float) -> Iterator[Door]:
        """See `MeetingPlace`."""
        del timeout_s
        assert self._listener is not None
        with Door([(self._listener, self._place.proof)]) as door:
            yield door

    def call(self) -> tuple[socket.socket, Proof]:
        """See `MeetingPlace`."""
        return self._place.call()


def _numeric(name: str) -> str:
    """The address of a host, or its name where that is not known."""
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return name
