"""torch, as the engine sees it (see `Binding` in runtime/core/binding.py)."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch

from ... import instrument
from ...core.binding import Pending, Place
from ...core.config import Config
from ...core.control.messages import Request
from ...core.job_store import JobStore
from ...core.operations import ReduceOp
from ...core.topology import Launched
from ...core.work import Batch, Entry, whole_of
from ...instrument import own_device
from ...instrument.samplers import Sampler
from . import devices, rendezvous, small, transports
from .arithmetic import neutral
from .collectives import COLLECTIVES, Site, put_results
from .dtypes import DTYPES
from .fusion_buffers import FusionBuffers

_CPU: Final = torch.device("cpu")


def _mode_of(batch: Batch) -> AbstractContextManager[None]:
    """Inference mode if results go into tensors made in it, which nobody else may write; whatever this thread is in.

    The training that asked may be in another mode than the thread that executes: the runtime's own, or a training that waits
    for something else.  What is allocated here is never made in inference mode, since anybody may get it.
    """
    whole = whole_of(batch.entries)
    outputs = [entry.output for entry in batch.entries] if whole is None else [whole]
    wanted = any(output is not None and output.is_inference() for output in outputs)
    return nullcontext() if wanted == torch.is_inference_mode_enabled() else torch.inference_mode(wanted)


class TorchBinding:
    """See `Binding`."""

    def __init__(self) -> None:
        self._buffers = FusionBuffers()
        self._stores: list[rendezvous.RankStore] = []

    @property
    def device(self) -> str:
        """See `Binding`."""
        return own_device.kind()

    @property
    def versions(self) -> Mapping[str, str]:
        """See `Binding`."""
        return own_device.versions()

    def choose_transports(self, config: Config, *, mpi_job: bool) -> dict[str, str]:
        """See `Binding`."""
        chosen = {"cpu": transports.choose(config.cpu_operations, "cpu", mpi_job=mpi_job)}
        if torch.cuda.is_available():
            chosen["cuda"] = transports.choose(config.gpu_operations, "cuda", mpi_job=mpi_job)
        return chosen

    def world(self, size: int, rank: int) -> Any:
        """See `Binding`."""
        return transports.mpi.world(size, rank)

    def open_board(self, launched: Launched, timeout_s: float) -> rendezvous.OpenBoard:
        """See `Binding`."""
        return rendezvous.OpenBoard(launched, timeout_s)

    def part_of_store(self, store: JobStore, prefix: str, timeout_s: float) -> rendezvous.RankStore:
        """See `Binding`."""
        own = rendezvous.RankStore(store, prefix, timeout_s)
        # The transports hold it from C++, where nothing keeps the Python half alive.
        self._stores.append(own)
        return own

    def connect(
        self, place: Place, names: Mapping[str, str], hosts: tuple[str, ...] | None
    ) -> transports.TransportGroup:
        """See `Binding`."""
        return transports.connect(place, names, hosts)

    def mark_produced(self, entries: Sequence[Entry]) -> None:
        """See `Binding`."""
        on_device = [entry for entry in entries if not entry.tensor.is_cpu]
        if on_device:
            if own_device.in_use() is None:
                own_device.note()
            devices.mark_produced(on_device)

    def absent(self, request: Request, device: Any) -> torch.Tensor:
        """See `Binding`."""
        where = _CPU if request.device == "cpu" else devices.device_of(torch.device(device))
        tensor = torch.empty(request.shape, dtype=DTYPES[request.dtype], device=where)
        neutral(ReduceOp(request.op), tensor)
        return tensor

    def mark_absent(self, entry: Entry) -> None:
        """See `Binding`."""
        if not entry.tensor.is_cpu:
            devices.mark_produced([entry])

    def execute(self, group: transports.TransportGroup, batch: Batch) -> Pending | None:
        """See `Binding`."""
        site = Site(group, self._buffers)
        operate = COLLECTIVES[batch.entries[0].request.kind]
        with _mode_of(batch):
            if batch.entries[0].tensor.is_cpu:
                operate(site, batch)
                return None
            with devices.own_stream(batch.entries) as handed:
                operate(site, batch)
            return handed

    def to_bytes(self, tensor: torch.Tensor) -> bytes:
        """See `Binding`."""
        return small.to_bytes(tensor)

    def combine(self, request: Request, values: Sequence[bytes]) -> bytes:
        """See `Binding`."""
        return small.reduce(request, values)

    def put_results(self, batch: Batch) -> None:
        """See `Binding`."""
        put_results(batch)

    def instrument_framework(self) -> None:
        """See `Binding`."""
        instrument.install()

    def sample(self, interval_s: float, local_rank: int, *, only_load: bool = False) -> Callable[[], None]:
        """See `Binding`."""
        sampler = Sampler(interval_s, local_rank=local_rank, only_load=only_load)
        sampler.start()
        return sampler.stop
