"""What torch's allocator has of the device's memory, and how often it had to ask the driver a second time."""

from collections.abc import Iterator
from typing import Any, Final

import torch

from ...timeline.vocabulary import TORCH_RETRIES
from .own_device import InUse
from .sources import CounterSource, Sample

#: Counters, and what torch calls them.
_NOW: Final = {
    "torch allocated bytes": "allocated_bytes.all.current",
    "torch reserved bytes": "reserved_bytes.all.current",
}
_SINCE_THE_BEGINNING: Final = {TORCH_RETRIES: "num_alloc_retries", "torch out of memory": "num_ooms"}


def open_device(device: InUse) -> CounterSource | None:
    """Counters of torch's memory on a device; None if it has none there."""
    cuda: Any = torch.cuda  # untyped

    def read() -> dict[str, int]:
        return dict(cuda.memory_stats(device.ordinal)) if cuda.is_initialized() else {}

    try:
        first = read()
    except (RuntimeError, AssertionError):  # torch's ways to say that there is no such device
        return None

    def sample(_: float) -> Iterator[Sample]:
        found = read()
        for name, key in _NOW.items():
            if key in found:
                yield name, float(found[key])
        for name, key in _SINCE_THE_BEGINNING.items():
            if key in found:
                yield name, float(found[key] - first.get(key, 0))

    return sample if first else None
