"""DeepSpeed: `engine, *_ = initialize(timeline="t.json", model=…, …)` in place of `deepspeed.initialize`."""

import os
from functools import wraps
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

from ..runtime.instrument import optimizer_span, step_boundary
from .lasting import LastingRecording


def initialize(*args: Any, timeline: str | os.PathLike[str] | None = None, **kwargs: Any) -> Any:
    """`deepspeed.initialize`, recorded on every rank until the process ends.

    Args:
        timeline: see `tlkit.instrument`.

    Returns:
        What `deepspeed.initialize` returns: engine, optimizer, loader and scheduler.
    """
    if not dist.is_initialized():
        deepspeed.init_distributed()
    LastingRecording(timeline).begin()
    made = deepspeed.initialize(*args, **kwargs)
    _count_as_one(made[0].optimizer)
    return made


def _count_as_one(optimizer: Any) -> None:
    """Have an optimizer of DeepSpeed's own count as one: it steps the user's once for each group of parameters.

    Its parts would look like as many training steps.
    """
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(optimizer, torch.optim.Optimizer) or not isinstance(inner, torch.optim.Optimizer):
        return
    inner._tlkit_distributed = True  # type: ignore[attr-defined]  # noqa: SLF001  recorded below
    original = optimizer.step

    @wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        with optimizer_span(inner):
            result = original(*args, **kwargs)
        step_boundary(optimizer)
        return result

    optimizer.step = step
