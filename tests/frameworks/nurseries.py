"""Processes that have a framework and Keras on it, which take seconds to import: ranks are forked from them."""

from typing import Final

from ..integration.ranks import Nursery

#: For every rank: one thread each, no GPU, and nothing said but errors.
ENVIRONMENT: Final = {
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "JAX_PLATFORMS": "cpu",
}

_MODULES: Final = {
    "keras 2": ("tlkit.runtime.tensorflow",),
    "tensorflow": ("tlkit.runtime.tensorflow",),
    "torch": ("torch._dynamo",),
    "jax": ("optax", "tlkit.runtime.jax"),
}


def nursery_of(backend: str) -> Nursery:
    """The one for Keras 3 on this backend, or for Keras 2."""
    chosen = ("TF_USE_LEGACY_KERAS", "1") if backend == "keras 2" else ("KERAS_BACKEND", backend)
    return Nursery(
        modules=(*_MODULES[backend], "tlkit.runtime.keras", "tests.frameworks.job"),
        environment=(*ENVIRONMENT.items(), chosen),
    )
