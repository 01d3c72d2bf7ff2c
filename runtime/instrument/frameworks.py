"""Which framework a script that does not use our `hvd` is written in, so that remedies are in its words.

That a library is loaded says nothing: TensorBoard loads TensorFlow.  The script itself has names of what it uses.
"""

import sys
from types import ModuleType
from typing import Final

from ..core.framework import use_framework, used_framework
from . import tensorflow_cluster

_KERAS: Final = frozenset({"keras", "tf_keras"})
_OTHERS: Final = _KERAS | {"tensorflow"}


def note_framework() -> None:
    """Say what the script trains with, unless a binding of ours has said so: torch, or Keras or TensorFlow."""
    if used_framework()[0] != "torch" or not _OTHERS & sys.modules.keys():
        return
    used, of_strategy = _used_by(sys.modules["__main__"]), tensorflow_cluster.read_task() is not None
    if "torch" in used or not (used & _OTHERS or of_strategy):
        return
    versions = {
        name: str(getattr(sys.modules[name], "__version__", "")) for name in sorted(_OTHERS) if name in sys.modules
    }
    # Keras's own loop does not train with the strategy, so that its words would not help.
    use_framework("keras" if used & _KERAS and not of_strategy else "tensorflow", versions)


def _used_by(script: ModuleType) -> set[str]:
    """The libraries of which a script has modules, classes or functions among its names."""
    found = set()
    for value in list(vars(script).values()):
        module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(module, str):
            found.add(module.partition(".")[0])
    return found
