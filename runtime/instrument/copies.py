"""Copies of batches to a device, where there is one: `Tensor.to`, `Tensor.cuda` and `Module`-free code that calls them."""

from typing import Any

import torch

from ...timeline.record import recorder
from ...timeline.vocabulary import H2D_COPY, Category
from .patching import Patches
from .steps import tracker

_patches = Patches()


def install() -> None:
    """Record copies to the device.  Without a device there is nothing to record, and nothing is wrapped."""
    if torch.cuda.is_available():
        wrap_copies()


def wrap_copies() -> None:
    """Record copies of tensors from the host to any device."""
    for name in ("to", "cuda"):
        _patches.replace(torch.Tensor, name, _recorded(getattr(torch.Tensor, name)))


def _recorded(original: Any) -> Any:
    def recorded_copy(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # Parameters move once, before training; compiled code must see the original alone.
        if (
            not recorder.is_on()
            or torch.compiler.is_compiling()
            or not self.is_cpu
            or isinstance(self, torch.nn.Parameter)
            or not recorder.is_training_thread()
        ):
            return original(self, *args, **kwargs)
        opened = recorder.begin(Category.H2D, H2D_COPY, args={"bytes": self.nbytes}, payload=self.nbytes)
        try:
            result = original(self, *args, **kwargs)
        except BaseException:
            recorder.discard(opened)
            raise
        if result.is_cpu:  # another type, the same place
            recorder.discard(opened)
        else:
            tracker.touch()
            recorder.end(opened)
        return result

    recorded_copy.__wrapped__ = original  # type: ignore[attr-defined]
    recorded_copy.__doc__ = original.__doc__
    return recorded_copy


def uninstall() -> None:
    """Put back what was there."""
    _patches.restore()
