"""What the training's stream waits for: another stream's event, as FSDP waits for its gathering and prefetchers for their copies.

The host goes on meanwhile, and what it recorded around such a wait is no work of the device.  A mark before the wait and one
after it show the time.
"""

from typing import Any

import torch

from ...timeline.record import recorder
from ...timeline.vocabulary import SYNCHRONIZE, Category, LaneKind
from .patching import Patches

_patches = Patches()


def install() -> None:
    """Mark the waits of streams for events; without a device there are none."""
    if torch.cuda.is_available():
        wrap(torch.cuda.Event)


def wrap(event: Any) -> None:
    """Mark the waits for a class of events."""
    original = event.wait

    def wait(self: Any, stream: Any = None) -> Any:
        device = recorder.device()
        if device is None or not device.is_computed_on(stream):
            return original(self, stream)
        begun = device.mark()
        try:
            return original(self, stream)
        finally:
            device.span(LaneKind.COMPUTE, Category.OTHER, SYNCHRONIZE, (begun, device.mark()), None)

    wait.__doc__ = original.__doc__
    _patches.replace(event, "wait", wait)


def uninstall() -> None:
    """Put back what was there."""
    _patches.restore()
