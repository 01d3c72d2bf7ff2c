"""Forward and backward, seen from outside: the outermost module call and `backward()`.

Only the training thread is looked at.  A module called inside another one costs a function call and a comparison.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch

from ...timeline.record import recorder
from ...timeline.vocabulary import BACKWARD, FORWARD, INPUT_COUNTER, Category
from . import device_time
from .costly_settings import watch
from .model_habits import ModelHabits
from .patching import Patches
from .steps import tracker

_is_compiling = torch.compiler.is_compiling
_patches = Patches()


around_backward: list[tuple[Callable[[], None], Callable[[], None]]] = []
"""Pairs of what is called before every recorded backward pass, and after it."""

at_backward_end: list[Callable[[], None]] = []
"""Called, and forgotten, when the backward pass that is under way ends."""


class _Depth:
    """Whether the training thread is inside a recorded call."""

    forward = False
    backward = False


def install() -> None:
    """Record the outermost module calls and backward passes."""
    watch.make_habits = ModelHabits
    watch.forget()
    original_call = torch.nn.Module.__call__
    original_backward = torch.autograd.backward

    def recorded_call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        # The compiler sees a constant here and traces into the original alone.
        if _is_compiling():
            return original_call(self, *args, **kwargs)
        if _Depth.forward or not recorder.is_on() or not recorder.is_training_thread():
            if watch.repeats is not None and _Depth.forward and not _Depth.backward and recorder.is_training_thread():
                return watch.repeats.call(original_call, self, args, kwargs)
            return original_call(self, *args, **kwargs)
        _Depth.forward = True
        tracker.touch()
        watch.called(self)
        device_time.look(self)
        described: dict[str, Any] = {"module": type(self).__name__}
        if not self.training:
            described["training"] = False
        elif recorder.is_timeline_on():
            recorder.counter(INPUT_COUNTER, _elements((*args, *kwargs.values())))
        opened = recorder.begin(Category.FORWARD, FORWARD, args=described)
        try:
            if watch.repeats is not None and not _Depth.backward:
                return watch.repeats.call(original_call, self, args, kwargs)
            return original_call(self, *args, **kwargs)
        finally:
            _Depth.forward = False
            recorder.end(opened)

    def recorded_backward(*args: Any, **kwargs: Any) -> Any:
        if _Depth.backward or not recorder.is_on() or not recorder.is_training_thread():
            return original_backward(*args, **kwargs)
        _Depth.backward = True
        watch.look()
        for before, _ in around_backward:
            before()
        opened = recorder.begin(Category.BACKWARD, BACKWARD)
        try:
            if watch.repeats is not None:
                return watch.repeats.pass_through(original_backward, args, kwargs, is_grad=False)
            return original_backward(*args, **kwargs)
        finally:
            _Depth.backward = False
            while at_backward_end:
                at_backward_end.pop()()
            recorder.end(opened)
            for _, after in around_backward:
                after()

    recorded_call.__wrapped__ = original_call  # type: ignore[attr-defined]
    recorded_backward.__wrapped__ = original_backward  # type: ignore[attr-defined]
    recorded_backward.__doc__ = original_backward.__doc__
    _patches.replace(torch.nn.Module, "__call__", recorded_call)
    _patches.replace(torch.autograd, "backward", recorded_backward)
    _patches.replace(torch.autograd, "grad", _recorded_grad(torch.autograd.grad))


def _recorded_grad(original: Any) -> Any:
    """`torch.autograd.grad` by itself is a part of what the loss is made of: a penalty on gradients, derivatives by the input."""

    @wraps(original)
    def grad(*args: Any, **kwargs: Any) -> Any:
        is_inside = _is_compiling() or _Depth.forward or _Depth.backward
        if is_inside or not recorder.is_on() or not recorder.is_training_thread():
            return original(*args, **kwargs)
        with recorder.span(Category.FORWARD, FORWARD, module="torch.autograd.grad"):
            if watch.repeats is not None:
                return watch.repeats.pass_through(original, args, kwargs, is_grad=True)
            return original(*args, **kwargs)

    return grad


def _elements(values: Iterable[Any], depth: int = 2) -> int:
    """Elements of the tensors among `values` and in the collections there."""
    count = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            count += value.numel()
        elif depth and isinstance(value, (list, tuple)):
            count += _elements(value, depth - 1)
        elif depth and isinstance(value, dict):
            count += _elements(value.values(), depth - 1)
    return count


def uninstall() -> None:
    """Put back what was there."""
    watch.make_habits = None
    _patches.restore()
