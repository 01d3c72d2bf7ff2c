"""Gradients with requests that were made before: they are submitted, and waited for, many at a time."""

from collections.abc import Sequence

import torch

from ...timeline.record import recorder
from ..core import engine
from ..core.calls import GRADIENT
from ..core.control.messages import Request
from ..core.errors import HorovodInternalError
from ..core.work import Entry, Handle, Together
from .submission import require_running


def _nothing(_: Sequence[Entry]) -> None:
    """Whoever has prepared them knows where the results are."""


def _entries(requests: Sequence[Request], tensors: Sequence[torch.Tensor], handle: Handle) -> list[Entry]:
    now_ns = recorder.now_ns()
    return [Entry(request, tensor, tensor, handle, now_ns) for request, tensor in zip(requests, tensors, strict=True)]


def submit_prepared(requests: Sequence[Request], tensors: Sequence[torch.Tensor]) -> Handle:
    """Submit gradients, as flat tensors, to be reduced in place, with requests that were made before; returns their handle.

    They are said at once, since whoever has prepared them does not submit others soon.
    """
    handle = Handle(_nothing)
    entries = _entries(requests, tensors, handle)
    if entries:
        require_running().submit(entries, hurry=True, call=GRADIENT)
    return handle


def join(requests: Sequence[Request], tensors: Sequence[torch.Tensor], memory: torch.Tensor) -> Together:
    """What `submit_together` takes: gradients as flat tensors, and all of them as one."""
    return Together(_entries(requests, tensors, Handle(_nothing)), memory)


def submit_together(together: Together) -> Handle:
    """As `submit_prepared`, what is submitted again when it is done."""
    entries = together.entries
    if recorder.keeps_tensors():
        # The timeline may look at them after they are done.
        return submit_prepared([entry.request for entry in entries], [entry.tensor for entry in entries])
    now_ns = recorder.now_ns()
    handle = Handle(_nothing)
    for entry in entries:
        entry.handle = handle
        entry.submitted_ns = now_ns
    require_running().submit(entries, hurry=True, call=GRADIENT)
    return handle


def check_outcome(handle: Handle) -> None:
    """Let go of what a handle has held.

    Raises:
        HorovodInternalError: the operation failed.
    """
    handle.entries = ()
    if handle.error is not None:
        raise HorovodInternalError(handle.error)


def wait_for_handles(handles: Sequence[Handle]) -> None:
    """Wait for what `submit_prepared` has started."""
    running = engine.current()
    if running is not None:
        running.wait(handles)
