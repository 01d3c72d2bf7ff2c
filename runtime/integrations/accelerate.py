"""Accelerate: `accelerator = record(Accelerator(), "t.json")`, before `prepare`.

Not a tracker (`log_with`): Accelerate starts trackers on the main process alone.
"""

import logging
import os
from functools import wraps
from typing import Any

from accelerate import Accelerator

from .lasting import LastingRecording

_log = logging.getLogger("tlkit.runtime")


def record(accelerator: Accelerator, timeline: str | os.PathLike[str] | None = None) -> Accelerator:
    """Record every rank from here until `accelerator.end_training()`, or the end of the process.

    Args:
        accelerator: has connected the ranks, and has not prepared a model yet.
        timeline: see `tlkit.instrument`.

    Returns:
        The same accelerator.
    """
    if accelerator.num_processes > 1 and accelerator._models:  # noqa: SLF001  nothing else tells
        _log.warning(
            "the Accelerator has wrapped a model, whose gradients are not recorded: call record() before prepare()"
        )
    recording = LastingRecording(timeline)
    recording.begin()
    original = accelerator.end_training

    @wraps(original)
    def end_training(*args: Any, **kwargs: Any) -> Any:
        recording.end()
        return original(*args, **kwargs)

    accelerator.end_training = end_training
    return accelerator
