"""Starting and stopping: the runtime knows that the script is JAX's."""

import jax

from ..core.framework import use_framework
from ..instrument.compilations import listen_to_jax
from ..torch import basics
from . import steps


def init() -> None:
    """Start the runtime and meet the other ranks.

    Raises:
        ValueError: the ranks could not meet.
    """
    use_framework("jax", {"jax": jax.__version__})
    listen_to_jax()
    basics.init()


def shutdown() -> None:
    """End the runtime of the job; callbacks that compiled functions have under way are waited for."""
    jax.effects_barrier()
    basics.shutdown()
    steps.forget()
