"""Records what a training script does, without a line changed in it: data loading, forward, backward, optimizer, steps."""

import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from ...timeline.record import recorder
from . import (
    captures,
    compilations,
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
_PARTS = (data, model, optimizer, copies, device_time, captures, stream_waits, garbage, compilations, empty)
_COLLECTIVES = (torch_collectives, functional_collectives, torch_messages)
#: Frameworks that are recorded if the script has loaded them before: by module, ours for it.
_OTHERS: Final = (("tensorflow", ".tensorflow_steps"), ("keras", ".keras_steps"), ("tf_keras", ".keras2_steps"))
_COLLECTIVES_OF_OTHERS: Final = (("tensorflow", ".tensorflow_collectives"),)
_installed: list[Any] = []


def install(*, collectives: bool = False) -> None:
    """Instrument torch in this process; the calling thread is the training thread.

    The second time only the steps are counted anew.

    Args:
        collectives: whether those of torch.distributed and tf.distribute are recorded, for trainings that do not use our `hvd`.

    A part that cannot be instrumented, as in a future torch, is reported once and left out.
    """
    recorder.mark_training_thread()
    tracker.forget()
    others = (*_OTHERS, *(_COLLECTIVES_OF_OTHERS if collectives else ()))
    for part in (*_PARTS, *(_COLLECTIVES if collectives else ()), *_used(others)):
        if part in _installed:
            continue
        try:
            part.install()
        except Exception:  # training goes on without this part
            _log.warning("%s cannot be recorded with this torch", part.__name__, exc_info=True)
            part.uninstall()
        else:
            _installed.append(part)


def _used(parts: Sequence[tuple[str, str]]) -> list[Any]:
    """The parts for frameworks that the script uses."""
    found = []
    for framework, part in parts:
        if framework in sys.modules:
            try:
                found.append(import_module(part, __package__))
            except Exception:  # training goes on without this part
                _log.warning("steps of this version of %s cannot be recorded", framework, exc_info=True)
    return found


def uninstall() -> None:
    """Put everything back."""
    while _installed:
        _installed.pop().uninstall()


def step_boundary(stepped: object) -> None:
    """Tell that an optimizer which records itself has stepped."""
    if recorder.is_on() and recorder.is_training_thread():
        tracker.optimizer_stepped(stepped)


__all__ = ["install", "optimizer_span", "step_boundary", "uninstall"]
