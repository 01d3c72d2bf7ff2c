"""Hugging Face's Trainer: `Trainer(..., callbacks=[TimelineCallback("t.json")])`."""

import logging
import os
from typing import Any

from transformers import TrainerCallback

from .lasting import LastingRecording

_log = logging.getLogger("tlkit.runtime")


class TimelineCallback(TrainerCallback):  # type: ignore[misc]  # the lint environment has no Transformers
    """Records what `Trainer.train` does on every rank."""

    def __init__(self, timeline: str | os.PathLike[str] | None = None) -> None:
        """See `tlkit.instrument` for `timeline`."""
        self._recording = LastingRecording(timeline)
        self._saw_init = False

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin: the Trainer has connected the ranks, and wraps the model only when it trains."""
        del args, state, control, kwargs
        self._saw_init = True
        self._recording.begin()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin, if `on_init_end` came too early: for `add_callback`, which follows it, and for a second `train`."""
        del state, control, kwargs
        if not self._saw_init and args.world_size > 1:
            _log.warning(
                "gradients are not recorded: give the callback to Trainer(callbacks=[...]), add_callback() is too late"
            )
        self._recording.begin()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Finish the file."""
        del args, state, control, kwargs
        self._recording.end()
