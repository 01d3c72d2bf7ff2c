"""Lightning: `Trainer(callbacks=[TimelineCallback("t.json")])`, under the name `lightning` or `pytorch_lightning`."""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from .lasting import LastingRecording

#: Where the class that callbacks derive from is, under each name of the package.
_CALLBACKS: Final = {"lightning": "lightning.pytorch.callbacks", "pytorch_lightning": "pytorch_lightning.callbacks"}


def _bases() -> tuple[type, ...]:
    """`Callback` of each package that the script has loaded; of one that is installed if it has loaded none.

    Both packages may be in one process, and know nothing of each other.
    """
    names = [name for name in _CALLBACKS if name in sys.modules]
    names = names or [name for name in _CALLBACKS if find_spec(name)][:1]
    if not names:
        raise ImportError("tlkit.integrations.lightning needs Lightning: pip install lightning")
    return tuple(import_module(_CALLBACKS[name]).Callback for name in names)


class TimelineCallback(*_bases()):  # type: ignore[misc]  # known when the script runs
    """Records what `Trainer.fit` does on every rank."""

    def __init__(self, timeline: str | os.PathLike[str] | None = None) -> None:
        """See `tlkit.instrument` for `timeline`."""
        super().__init__()
        self._recording = LastingRecording(timeline)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin: the strategy has connected the ranks, and has not wrapped the module yet."""
        del trainer, pl_module
        if stage == "fit":
            self._recording.begin()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Finish the file."""
        del trainer, pl_module
        if stage == "fit":
            self._recording.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Finish the file: after an error there is no `teardown`."""
        del trainer, pl_module, exception
        self._recording.end()
