"""What a training is made of, as far as settings could change it: loaders, optimizer, DDP, transport, threads."""

import functools
import os
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from ...timeline.trials import LoaderSeen, Seen
from ..core import engine
from ..core.topology import read_launched
from ..instrument import own_device
from ..torch.data_plane.transports.shared_memory import is_built as can_share_memory
from .overrides import FUSABLE

#: DDP's own, where none is given.
_DEFAULT_BUCKET_MB: Final = 25.0


class Observer:
    """Looks at loaders and DDP as they are made and used."""

    def __init__(self) -> None:
        self._loaders: dict[int, tuple[Any, int]] = {}
        self._ddp: list[Any] = []
        self._optimizer: Any = None
        self._threads = 0

    def install(self) -> None:
        """Look from now on."""
        loader_class: Any = DataLoader
        iterate = loader_class.__iter__

        @functools.wraps(iterate)
        def noted(loader: Any) -> Any:
            _, epochs = self._loaders.get(id(loader), (loader, 0))
            # Held, so that no other loader gets its number.
            self._loaders[id(loader)] = (loader, epochs + 1)
            return iterate(loader)

        loader_class.__iter__ = noted
        ddp_class: Any = DistributedDataParallel
        make = ddp_class.__init__

        @functools.wraps(make)
        def made(module: Any, *args: Any, **kwargs: Any) -> None:
            make(module, *args, **kwargs)
            self._ddp.append(module)

        ddp_class.__init__ = made

    def note(self, optimizer: torch.optim.Optimizer) -> None:
        """The first step has ended: what holds now is what the script has chosen."""
        self._optimizer = optimizer
        self._threads = torch.get_num_threads()

    def seen(self) -> Seen:
        """Everything that was found."""
        running, launched, optimizer = engine.current(), read_launched(), self._optimizer
        reduction = getattr(optimizer, "_reduction", None)
        hosts = 1 if running is None else len(set(running.hosts))
        if running is None and launched.local_size:
            hosts = -(-launched.size // launched.local_size)
        local_size = launched.local_size or (launched.size if running is None else running.topology.local_size)
        ddp: Any = self._ddp[0] if self._ddp else None
        return Seen(
            runtime="torch" if running is None else "hvd",
            transport="" if running is None else running.transports.get("cpu", ""),
            device=_device_of(optimizer),
            local_size=local_size,
            hosts=hosts,
            cores=len(os.sched_getaffinity(0)),
            threads=self._threads,
            fusion_threshold_nbytes=0 if running is None else running.config.fusion_threshold_nbytes,
            cycle_time_ms=0.0 if running is None else running.config.cycle_time_s * 1e3,
            lays_out=bool(getattr(reduction, "_buckets", None)),
            loaders=[_describe(loader, epochs) for loader, epochs in self._loaders.values()],
            optimizer=type(optimizer).__name__,
            fused=_fused(optimizer),
            ddp=ddp is not None,
            bucket_view=bool(getattr(ddp, "gradient_as_bucket_view", False)),
            bucket_cap_mb=float(getattr(ddp, "bucket_bytes_cap", 0) or 0) / (1 << 20) or _DEFAULT_BUCKET_MB,
            compression=_compresses(reduction),
            shares_memory=running is not None and can_share_memory() and hosts == 1,
        )


def _describe(loader: Any, epochs: int) -> LoaderSeen:
    return LoaderSeen(
        workers=int(loader.num_workers),
        prefetch=loader.prefetch_factor,
        persistent=bool(loader.persistent_workers),
        pin_memory=bool(loader.pin_memory),
        is_iterable=isinstance(loader.dataset, IterableDataset),
        epochs=epochs,
    )


def _device_of(optimizer: Any) -> str:
    """Where the parameters are."""
    for group in getattr(optimizer, "param_groups", []):
        for parameter in group["params"]:
            return str(parameter.device.type)
    return own_device.kind()


def _fused(optimizer: Any) -> bool | None:
    """Whether the optimizer updates in one pass; None where it cannot."""
    if not isinstance(optimizer, FUSABLE):
        return None
    return bool(optimizer.defaults.get("fused"))


def _compresses(reduction: Any) -> bool:
    compression = getattr(reduction, "_compression", None)
    return compression is not None and "none" not in getattr(compression, "__name__", "").lower()
