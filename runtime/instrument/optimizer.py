"""The local update of the parameters, and checkpoints."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ...timeline.record import recorder
from ...timeline.vocabulary import CHECKPOINT, OPTIMIZER_STEP, Category
from .patching import Patches
from .steps import tracker

_patches = Patches()
_hooks: list[Any] = []
_open: dict[int, recorder.OpenSpan | None] = {}


def optimizer_span(optimizer: object) -> Any:
    """The span of an optimizer's local update."""
    if not recorder.is_on():
        return recorder.span(Category.OPTIMIZER, OPTIMIZER_STEP)
    tracker.touch()
    return recorder.span(Category.OPTIMIZER, OPTIMIZER_STEP, optimizer=type(optimizer).__name__)


def _records_itself(optimizer: object) -> bool:
    """Whether the optimizer says by itself when it updates, because its `step` does more than that."""
    return getattr(optimizer, "_tlkit_distributed", False)


def _begin(optimizer: torch.optim.Optimizer) -> None:
    _open[id(optimizer)] = recorder.begin(
        Category.OPTIMIZER, OPTIMIZER_STEP, args={"optimizer": type(optimizer).__name__}
    )


def _before(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Begin the span.  Returns the arguments with which to call `step` instead, None for the same."""
    if _records_itself(optimizer) or not recorder.is_on() or not recorder.is_training_thread():
        return None
    tracker.touch()
    recorder.discard(_open.pop(id(optimizer), None))  # its last step raised
    _begin(optimizer)
    if callable(kwargs.get("closure")):
        return args, kwargs | {"closure": _outside(optimizer, kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):  # the first is the optimizer
        return (args[0], _outside(optimizer, args[1]), *args[2:]), kwargs
    return None


def _outside(optimizer: torch.optim.Optimizer, closure: Callable[..., Any]) -> Callable[..., Any]:
    """`closure`, outside the optimizer's span: it makes the gradients, and is no update of the parameters.

    Lightning trains this way: forward and backward run inside the optimizer's `step`.
    """
    has_updated = False

    @wraps(closure)
    def recorded_closure(*args: Any, **kwargs: Any) -> Any:
        nonlocal has_updated
        opened = _open.pop(id(optimizer), None)
        if has_updated:
            recorder.end(opened)
        else:
            recorder.discard(opened)  # nothing has been done before the first call
        result = closure(*args, **kwargs)
        has_updated = True
        if recorder.is_on():
            _begin(optimizer)
        return result

    return recorded_closure


def _after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if _records_itself(optimizer):
        return
    opened = _open.pop(id(optimizer), None)
    if opened is not None:
        recorder.end(opened)
        tracker.optimizer_stepped(optimizer)


def install() -> None:
    """Record every optimizer's step, and `torch.save`."""
    _hooks.append(register_optimizer_step_pre_hook(_before))
    _hooks.append(register_optimizer_step_post_hook(_after))
    original_save = torch.save

    def recorded_save(*args: Any, **kwargs: Any) -> Any:
        with recorder.span(Category.CHECKPOINT, CHECKPOINT):
            return original_save(*args, **kwargs)

    recorded_save.__wrapped__ = original_save  # type: ignore[attr-defined]
    recorded_save.__doc__ = original_save.__doc__
    _patches.replace(torch, "save", recorded_save)


def uninstall() -> None:
    """Put back what was there."""
    while _hooks:
        _hooks.pop().remove()
    _open.clear()
    _patches.restore()
