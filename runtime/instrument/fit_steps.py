"""Steps of Keras's `fit`: the function that trains on a batch, in either version of Keras."""

from typing import Any

from ...timeline.vocabulary import CostlySetting
from .costly_settings import watch
from .patching import Patches
from .phases import phases


class _TrainFunction:
    """A step of a model, or several."""

    def __init__(self, function: Any, model: Any, *, waits: bool, compiles: bool) -> None:
        self._function, self._model, self._waits, self._compiles = function, model, waits, compiles

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._compiles and getattr(self._model, "run_eagerly", False):
            watch.note(CostlySetting.EAGER_FUNCTIONS)
        with phases.call(self._model, waits=self._waits):
            return self._function(*args, **kwargs)


def wrap_train_function(patches: Patches, model_class: Any, *, waits: bool, compiles: bool = True) -> None:
    """Record every call of the functions that models train with.

    Args:
        patches: takes it back.
        model_class: Keras's `Model`.
        waits: whether such a call returns when the step is done.
        compiles: whether these functions are compiled unless a model is told to run eagerly.
    """
    owner = next(each for each in model_class.__mro__ if "make_train_function" in vars(each))
    original = owner.make_train_function

    def make_train_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(self, *args, **kwargs)
        if self.train_function is not None and not isinstance(self.train_function, _TrainFunction):
            self.train_function = _TrainFunction(self.train_function, self, waits=waits, compiles=compiles)
        # Keras 2 calls what it is handed, Keras 3 what it finds.
        return made if made is None else self.train_function

    make_train_function.__wrapped__ = original  # type: ignore[attr-defined]
    patches.replace(owner, "make_train_function", make_train_function)
