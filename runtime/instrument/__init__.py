"""Records what a training script does, without a line changed in it: data loading, forward, backward, optimizer, steps."""

import logging
from typing import Any

from ...timeline import recorder
from . import (
    captures,
    copies,
    data,
    device_time,
    empty,
    functional_collectives,
    garbage,
    model,
    optimizer,
    stream_waits,
    torch_collectives,
    torch_messages,
)
from .optimizer import optimizer_span
from .steps import tracker

_log = logging.getLogger("tlkit.instrument")
_PARTS = (data, model, optimizer, copies, device_time, captures, stream_waits, garbage, empty)
_COLLECTIVES = (torch_collectives, functional_collectives, torch_messages)
_installed: list[Any] = []


def install(*, collectives: bool = False) -> None:
    """Instrument torch in this process; the calling thread is the training thread.

    The second time only the steps are counted anew.

    Args:
        collectives: whether those of torch.distributed are recorded, for trainings that do not use our `hvd`.

    A part that cannot be instrumented, as in a future torch, is reported once and left out.
    """
    recorder.mark_training_thread()
    tracker.forget()
    for part in (*_PARTS, *(_COLLECTIVES if collectives else ())):
        if part in _installed:
            continue
        try:
            part.install()
        except Exception:  # training goes on without this part
            _log.warning("%s cannot be recorded with this torch", part.__name__, exc_info=True)
            part.uninstall()
        else:
            _installed.append(part)


def uninstall() -> None:
    """Put everything back."""
    while _installed:
        _installed.pop().uninstall()


def step_boundary(stepped: object) -> None:
    """Tell that an optimizer which records itself has stepped."""
    if recorder.is_on() and recorder.is_training_thread():
        tracker.optimizer_stepped(stepped)


__all__ = ["install", "optimizer_span", "step_boundary", "uninstall"]
