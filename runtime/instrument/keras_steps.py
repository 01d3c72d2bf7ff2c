"""Steps of Keras 3's `fit`, on all backends, and updates of its optimizers."""

import sys
from collections.abc import Callable
from typing import Any

import keras
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.trainers.epoch_iterator import EpochIterator

from ...timeline.record import recorder
from ...timeline.vocabulary import DATA_WAIT, Category, LaneKind
from . import model as torch_model
from .compilations import listen_to_jax
from .fit_steps import wrap_train_function
from .patching import Patches
from .phases import phases
from .steps import tracker

_patches = Patches()
_BACKWARD = (phases.loss, phases.backward_done)


def install() -> None:
    """Record steps, and what they wait for."""
    backend = keras.backend.backend()
    wrap_train_function(_patches, keras.Model, waits=backend != "jax", compiles=backend != "torch")
    if backend == "jax":
        listen_to_jax()
    _wrap_apply()
    if keras.backend.backend() != "tensorflow":
        _wrap_data()
    if keras.backend.backend() == "torch":
        torch_model.around_backward.append(_BACKWARD)


def uninstall() -> None:
    """Put back what was there; models that train keep their functions, which record while anything is recorded."""
    _patches.restore()
    if _BACKWARD in torch_model.around_backward:
        torch_model.around_backward.remove(_BACKWARD)


def _traces(gradients: Any) -> bool:
    """Whether a graph is being made, in which nothing happens yet."""
    if keras.backend.backend() == "tensorflow":
        return not sys.modules["tensorflow"].executing_eagerly()
    return keras.backend.backend() == "jax" and "Tracer" in "".join(
        base.__name__ for base in type(gradients[0]).__mro__
    )


def _wrap_apply() -> None:
    original = BaseOptimizer.apply

    def recorded_apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        given = list(grads)
        there = [gradient for gradient in given if gradient is not None]
        if there and _traces(there):
            if keras.backend.backend() == "tensorflow":
                from .tensorflow_steps import mark  # noqa: PLC0415  with this backend alone

                mark(phases.gradients, there)
            with phases.tracing_update():
                return original(self, given, trainable_variables)
        if not recorder.is_on() or not (phases.inside or recorder.is_training_thread()):
            return original(self, given, trainable_variables)
        with phases.update(self):
            return original(self, given, trainable_variables)

    recorded_apply.__wrapped__ = original  # type: ignore[attr-defined]
    _patches.replace(BaseOptimizer, "apply", recorded_apply)


def _wrap_data() -> None:
    if keras.backend.backend() == "jax":
        # It asks for its batches inside of the step.
        from keras.src.backend.jax.trainer import JAXEpochIterator  # noqa: PLC0415  with this backend alone

        get_iterator = JAXEpochIterator._get_iterator  # noqa: SLF001  the one place

        def recorded_iterator(self: Any) -> Any:
            return _Batches(get_iterator(self))

        _patches.replace(JAXEpochIterator, "_get_iterator", recorded_iterator)
        return
    original = EpochIterator.__next__

    def recorded_next(self: Any) -> Any:
        return _waited(lambda: original(self))

    _patches.replace(EpochIterator, "__next__", recorded_next)


class _Batches:
    """An iterator over batches, which are waited for."""

    def __init__(self, batches: Any) -> None:
        self._batches = iter(batches)

    def __iter__(self) -> "_Batches":
        return self

    def __next__(self) -> Any:
        return _waited(lambda: next(self._batches))


def _waited(ask: Callable[[], Any]) -> Any:
    if not recorder.is_on():
        return ask()
    tracker.touch()
    asked_ns = recorder.now_ns()
    batch = ask()
    recorder.complete(LaneKind.DATA, Category.DATA, DATA_WAIT, asked_ns, recorder.now_ns(), {"workers": 0})
    return batch
