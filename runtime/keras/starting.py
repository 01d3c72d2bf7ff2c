"""Starting the runtime for Keras."""

from typing import Any

from ..core.framework import use_framework
from ..torch import basics
from .library import keras


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Start the runtime and meet the other ranks (see `tlkit.runtime.torch.init`)."""
    use_framework("keras", {"keras": keras.__version__, "keras backend": keras.backend.backend()})
    basics.init(comm, process_sets)


def reset() -> None:
    """Let the ranks meet anew."""
    basics.shutdown()
    init()
