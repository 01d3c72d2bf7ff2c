"""How two ranks come to a connection: the first listens, tells the other where through the job's store, and both agree.

Who connects proves that it belongs to the job (core/handshake.py), with a secret that is made for this one connection and goes
through the store.
"""

import contextlib
import fcntl
import importlib
import json
import secrets
import socket
import struct
import time
from typing import Any, Final

import torch

from ......timeline.errors import RuntimeFailure
from .....core.addresses import LOOPBACK
from .....core.binding import Place
from .....core.connections import listen
from .....core.door import Door
from .....core.handshake import Caller, NotOfThisJob, Proof, Purpose, introduce
from .....core.operations import ReduceOp
from ...dtypes import DTYPE_NAMES

#: What the ioctl for a network interface's address is called in C: SIOCGIFADDR.
_GET_ADDRESS: Final = 0x8915
_INTERFACE: Final = struct.Struct("16sH2x4s232x")

#: How often the first rank looks whether the other one cannot come.
_LOOK_S: Final = 0.05

#: How long the other one tries to connect; a network that drops what it does not let through says nothing.
_CONNECT_S: Final = 10.0

_OPS: Final = {ReduceOp.SUM: "sum"}


def load_compiled() -> Any:
    """What moves and adds the bytes; None where it was not compiled."""
    try:
        return importlib.import_module("._native", __package__)
    except ImportError:
        return None


_compiled: Final = load_compiled()


class _NotConnected(Exception):
    """This rank cannot have a connection; says why."""


class Pair:
    """One end of the connection."""

    def __init__(self, connection: socket.socket, rank: int, timeout_s: float) -> None:
        """Use `connection`.

        Args:
            rank: 0 or 1.
            timeout_s: for a sum in which the other rank makes no progress.
        """
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        self._connection = connection
        self._native: Any = _compiled.Pair(connection.fileno(), rank == 0, timeout_s)

    @staticmethod
    def takes(buffer: torch.Tensor, op: ReduceOp) -> bool:
        """Whether it reduces such a tensor; the ranks come to the same answer."""
        return buffer.is_cpu and op in _OPS and _compiled.can_reduce(DTYPE_NAMES[buffer.dtype], _OPS[op])

    def allreduce(self, buffer: torch.Tensor, op: ReduceOp) -> None:
        """Reduce a tensor over both ranks, in place.

        Raises:
            RuntimeError: the other rank is gone, or does not come.
        """
        self._native.allreduce(buffer.data_ptr(), buffer.numel(), DTYPE_NAMES[buffer.dtype], _OPS[op])

    def cut(self) -> None:
        """End what waits for the other rank; called by another thread."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection.  Nothing may be under way."""
        self._connection.close()


def open_pair(place: Place) -> Pair | None:
    """Connect the two ranks of `place`; None on both, if one of them cannot.

    Raises:
        RuntimeError: the other rank does not answer.
    """
    connection: socket.socket | None = None
    refusal = ""
    try:
        try:
            connection = _listen(place) if place.rank == 0 else _call(place, json.loads(place.store.get("pair")))
        except (_NotConnected, NotOfThisJob, RuntimeFailure, OSError, ValueError) as error:
            refusal = str(error) or type(error).__name__
        if place.rank == 0:
            refusal = refusal or place.store.get("pair/other").decode()
            place.store.set("pair/agreed", refusal)
        else:
            place.store.set("pair/other", refusal)
            refusal = place.store.get("pair/agreed").decode()
        if refusal or connection is None:
            return None
        pair, connection = Pair(connection, place.rank, place.timeout_s), None
        return pair
    finally:
        if connection is not None:
            connection.close()


def _listen(place: Place) -> socket.socket:
    """The first rank's end."""
    try:
        if _compiled is None:
            raise _NotConnected("it was installed without a C compiler")
        address = _own_address(place)
        listener = listen(address)
    except (_NotConnected, RuntimeFailure, OSError) as error:
        place.store.set("pair", json.dumps({"refusal": str(error)}))
        raise
    secret = secrets.token_hex(32)
    port = listener.getsockname()[1]
    with Door([(listener, _proof(secret, address, port))]) as door:
        place.store.set("pair", json.dumps({"address": address, "port": port, "secret": secret}))
        give_up_s = time.monotonic() + place.timeout_s
        while time.monotonic() < give_up_s:
            guests = door.wait(_LOOK_S)
            if guests:
                for guest in guests[1:]:
                    guest.connection.close()
                return guests[0].connection
            if place.store.check(["pair/other"]) and (why := place.store.get("pair/other").decode()):
                raise _NotConnected(why)
    raise _NotConnected(f"the other rank did not come within {place.timeout_s:g} s")


def _call(place: Place, told: dict[str, Any]) -> socket.socket:
    """The other rank's end."""
    if "refusal" in told:
        raise _NotConnected(str(told["refusal"]))
    if _compiled is None:
        raise _NotConnected("it was installed without a C compiler")
    address, port = str(told["address"]), int(told["port"])
    timeout_s = min(place.timeout_s, _CONNECT_S)
    connection = socket.create_connection((address, port), timeout_s)
    try:
        introduce(connection, _proof(str(told["secret"]), address, port), Purpose.DATA, Caller(1), timeout_s)
    except BaseException:
        connection.close()
        raise
    return connection


def _proof(secret: str, address: str, port: int) -> Proof:
    return Proof.of(secret, f"{address}:{port}", "pair")


def _own_address(place: Place) -> str:
    """Where the first rank listens: where its transport does.

    Raises:
        OSError: there is no such interface, or it has no address of this kind.
    """
    if place.interface:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            asked = _INTERFACE.pack(place.interface.encode()[:15], socket.AF_INET, bytes(4))
            return socket.inet_ntoa(fcntl.ioctl(probe, _GET_ADDRESS, asked)[20:24])
    if place.loopback:
        return LOOPBACK
    return place.address or socket.gethostbyname(socket.gethostname())
