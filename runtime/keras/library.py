"""Which Keras this is: Keras 3, or Keras 2 (tf-keras) where TF_USE_LEGACY_KERAS=1 makes TensorFlow's `tf.keras` that one."""

import os
from importlib import import_module
from typing import Any, Final

import numpy as np

#: As TensorFlow reads the variable.
IS_KERAS_2: Final = os.environ.get("TF_USE_LEGACY_KERAS") in {"1", "true", "True"}

keras: Final[Any] = import_module("tf_keras" if IS_KERAS_2 else "keras")


def to_numpy(value: Any) -> np.ndarray[Any, Any]:
    """The values of a tensor or variable of Keras, or of anything that NumPy takes."""
    if IS_KERAS_2:
        return np.asarray(value)
    return np.asarray(keras.ops.convert_to_numpy(value))


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor of Keras's backend; NumPy takes those of Keras 2 as they are."""
    return not IS_KERAS_2 and bool(keras.ops.is_tensor(value))


def is_variable(value: Any) -> bool:
    """Whether it is a variable of Keras, or of TensorFlow."""
    return (not IS_KERAS_2 and isinstance(value, keras.Variable)) or (
        hasattr(value, "assign") and hasattr(value, "shape")
    )


def optimizer_variables(optimizer: Any) -> list[Any]:
    """The variables of an optimizer: a method of the older ones of Keras 2, a property of all others."""
    variables = getattr(optimizer, "variables", ())
    return list(variables() if callable(variables) and not isinstance(variables, list) else variables)


def build_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Make the variables of an optimizer that has none."""
    if not IS_KERAS_2:
        if not optimizer.built:
            optimizer.build(variables)
    elif isinstance(optimizer, keras.optimizers.legacy.Optimizer):
        optimizer._create_all_weights(variables)  # noqa: SLF001  the older ones have no other way
    else:
        optimizer.build(variables)


__all__ = ["IS_KERAS_2", "build_optimizer", "is_tensor", "is_variable", "keras", "optimizer_variables", "to_numpy"]
