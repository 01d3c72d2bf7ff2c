"""State and gradients of an optimizer that has not stepped yet.

Optimizers make their state in their first step.  Scripts that broadcast a new optimizer's state expect it to be there
afterwards, and gradients of zeros, as Horovod leaves them.  Horovod takes a real step for it, which decays weights; here
no parameter changes, and a training goes on as if nothing had been done.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

_log = logging.getLogger("tlkit.runtime")

#: What counts steps in an optimizer's state, and what it is before the first one.
_BEFORE_FIRST_STEP: Final = {"step": 0.0, "mu_product": 1.0}


def make_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter that is trained and has no gradient one of zeros."""
    for parameter in _trained(optimizer):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def make_state(optimizer: torch.optim.Optimizer) -> None:
    """Have the optimizer make its state, if it can without a closure or other gradients than dense ones."""
    parameters = _trained(optimizer)
    values = [parameter.detach().clone() for parameter in parameters]
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    try:
        with _without_decay(optimizer):
            _plain_step(optimizer)(optimizer)
        for state in optimizer.state.values():
            _set_back(state)
    except Exception as error:  # whatever an optimizer of the user's may raise: it makes its state later
        _log.debug("%s does not step on zeros: %s", type(optimizer).__name__, error)
        optimizer.state.clear()
    finally:
        with torch.no_grad():
            for parameter, value, gradient in zip(parameters, values, gradients, strict=True):
                parameter.copy_(value)
                parameter.grad = gradient


def _trained(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad]


@contextmanager
def _without_decay(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside, gradients of zeros stay zeros."""
    decays = [group.get("weight_decay") for group in optimizer.param_groups]
    try:
        for group in optimizer.param_groups:
            if "weight_decay" in group:
                group["weight_decay"] = 0.0
        yield
    finally:
        for group, decay in zip(optimizer.param_groups, decays, strict=True):
            if "weight_decay" in group:
                group["weight_decay"] = decay


def _plain_step(optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    """The optimizer's own step: without reductions, and without the hooks that see every step."""
    for each in type(optimizer).__mro__:
        step: Any = each.__dict__.get("step")
        if step is not None and "_tlkit_distributed" not in each.__dict__:
            inner: Callable[..., Any] = getattr(step, "__wrapped__", step) if getattr(step, "hooked", False) else step
            return inner
    raise AttributeError(f"{type(optimizer).__name__} has no step")


def _set_back(state: dict[str, Any]) -> None:
    for key, value in _BEFORE_FIRST_STEP.items():
        found = state.get(key)
        if isinstance(found, torch.Tensor):
            found.fill_(value)
        elif found is not None:
            state[key] = type(found)(value)
