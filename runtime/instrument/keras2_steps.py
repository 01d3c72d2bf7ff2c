"""Steps of the `fit` of Keras 2 (tf-keras), and updates of its optimizers; what asks for batches is TensorFlow's own."""

from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras.src.optimizers.legacy.optimizer_v2 import OptimizerV2
from tf_keras.src.optimizers.optimizer import Optimizer, _BaseOptimizer

from ...timeline.record import recorder
from .fit_steps import wrap_train_function
from .patching import Patches
from .phases import phases
from .tensorflow_steps import mark

_patches = Patches()


def install() -> None:
    """Record steps and updates."""
    wrap_train_function(_patches, tf_keras.Model, waits=True)
    for owner in (Optimizer, OptimizerV2):
        _wrap_apply(owner)
    # Where the gradients of all ranks are there: the update itself.
    _wrap_update(_BaseOptimizer, "apply_gradients", _gradients_of_pairs)
    _wrap_update(OptimizerV2, "_distributed_apply", _gradients_of_distribution)


def uninstall() -> None:
    """Put back what was there; models that train keep their functions, which record while anything is recorded."""
    _patches.restore()


def _gradients_of_pairs(grads_and_vars: Any, *_: Any, **__: Any) -> list[Any]:
    return [gradient for gradient, _ in grads_and_vars]


def _gradients_of_distribution(_distribution: Any, grads_and_vars: Any, *_: Any, **__: Any) -> list[Any]:
    return _gradients_of_pairs(grads_and_vars)


def _wrap_apply(owner: Any) -> None:
    """While the update is traced, what a strategy reduces in it are gradients."""
    original = owner.apply_gradients

    def recorded_apply(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        if tf.executing_eagerly():
            return original(self, pairs, *args, **kwargs)
        mark(phases.gradients, [gradient for gradient, _ in pairs if gradient is not None])
        with phases.tracing_update():
            return original(self, pairs, *args, **kwargs)

    recorded_apply.__wrapped__ = original  # type: ignore[attr-defined]
    _patches.replace(owner, "apply_gradients", recorded_apply)


def _wrap_update(owner: Any, name: str, gradients_of: Any) -> None:
    original = getattr(owner, name)

    def recorded_update(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            mark(phases.gradients, [gradient for gradient in gradients_of(*args, **kwargs) if gradient is not None])
            return original(self, *args, **kwargs)
        if not recorder.is_on() or not (phases.inside or recorder.is_training_thread()):
            return original(self, *args, **kwargs)
        with phases.update(self):
            return original(self, *args, **kwargs)

    recorded_update.__wrapped__ = original  # type: ignore[attr-defined]
    _patches.replace(owner, name, recorded_update)
