"""What the core asks of a framework: the tensors, the devices, and what moves bytes between ranks.

A framework gives one object that is a `Binding` (runtime/torch/data_plane/binding.py is torch's).  It is made anew at each
`init`, so it may hold what belongs to one engine, such as fusion buffers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .config import Config
from .control.messages import Request
from .job_store import JobStore
from .meeting_places import Board
from .topology import Launched
from .work import Batch, Buffer, Entry


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Which ranks are to be connected, and by what means they can find each other."""

    store: Any
    """A store of their own."""
    ranks: tuple[int, ...]
    """Global ranks of the process set, in order."""
    rank: int
    """This rank's place among them."""
    number: int
    """Distinguishes the process sets of a job; the same on all ranks."""
    timeout_s: float
    """For connecting, and for a collective in which a peer makes no progress."""
    interface: str = ""
    """Network interface to use, "" for the one of the host's name."""
    address: str = ""
    """An address of this host that the others reach; used where no interface is named, "" for that of the host's name."""
    loopback: bool = False
    """Whether all ranks are on this host, so that nothing has to listen on a network."""
    one_host: bool = False
    """Whether the ranks to be connected are on one host, though the job may have others, and no interface is named."""
    communicator: Any = None
    """The job's mpi4py communicator, where there is one; its ranks are the global ranks."""

    @property
    def size(self) -> int:
        """How many ranks are to be connected."""
        return len(self.ranks)


class ProcessGroup(Protocol):
    """This rank's place in a process set, connected with the other ranks."""

    number: int
    ranks: tuple[int, ...]
    """Global ranks, in order."""

    def algorithm(self, device: str, /) -> str:
        """The timeline's name for the transport of the tensors of a device, such as `cpu`."""

    def close(self) -> None:
        """Close the connections, together with the other ranks."""

    def abort(self) -> None:
        """Close the connections without the other ranks."""


class Pending(Protocol):
    """A batch that was launched on a device and may not be finished."""

    def wait(self) -> tuple[int, int] | None:
        """Block until the device has finished it.

        Returns:
            When it began and ended, on the recorder's clock; None if the times were not requested.

        Raises:
            Exception: whatever the device says of it.
        """


class Binding(Protocol):
    """A framework, as the engine sees it."""

    @property
    def device(self) -> str:
        """Kind of the devices that the training may use: `cpu` or `cuda`."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions that a timeline names."""

    def choose_transports(self, config: Config, *, mpi_job: bool) -> dict[str, str]:
        """The transport's name for each kind of device.

        Raises:
            UsageError: the settings name one that is not there.
        """

    def world(self, size: int, rank: int) -> Any:
        """MPI's communicator of all ranks.

        Raises:
            RuntimeFailure: there is none, or it has other ranks.
        """

    def open_board(self, launched: Launched, timeout_s: float) -> Board:
        """The store at MASTER_ADDR and MASTER_PORT, which every host on the network can read and write.

        Raises:
            RuntimeFailure: it cannot be reached.
        """

    def part_of_store(self, store: JobStore, prefix: str, timeout_s: float) -> Any:
        """A part of the job's store, as the framework's transports use it."""

    def connect(self, place: Place, transports: Mapping[str, str], hosts: tuple[str, ...] | None) -> ProcessGroup:
        """Connect the ranks of a process set.

        Args:
            transports: the transport's name for each kind of device.
            hosts: host of each rank of the set for hierarchical allreduce, None for the plain one.

        Raises:
            RuntimeFailure: they cannot be reached.
        """

    def mark_produced(self, entries: Sequence[Entry]) -> None:
        """Remember after which work of a device the submitted tensors may be read."""

    def absent(self, request: Request, device: Any) -> Buffer:
        """What a rank that has joined brings to a collective: values that change nothing.

        Args:
            device: where, for a tensor that is not on the CPU; the CPU if none is given.
        """

    def mark_absent(self, entry: Entry) -> None:
        """Remember after which work of a device what `absent` has made may be read."""

    def execute(self, group: Any, batch: Batch) -> Pending | None:
        """Do what all ranks have agreed on, or hand it to the device on which the tensors are, which does one after the other.

        Returns:
            What to wait for before the results may be read; None if they may be read now.

        Raises:
            Exception: whatever the transport raises.
        """

    def to_bytes(self, tensor: Any) -> bytes:
        """The values of a tensor in host memory."""

    def combine(self, request: Request, values: Sequence[bytes]) -> bytes:
        """What an allreduce of `values`, one of each rank in order, yields on every rank."""

    def put_results(self, batch: Batch) -> None:
        """Take the results that came with the response (`Response.results`).

        Raises:
            ValueError: they are longer or shorter than the tensors.
        """

    def instrument_framework(self) -> None:
        """Record the framework's phases: forward, backward, optimizer, data loading."""

    def sample(self, interval_s: float, local_rank: int, *, only_load: bool = False) -> Callable[[], None]:
        """Begin to sample the device and the host, or only how busy the host is; returns what ends it."""
