"""Models from disk, with an optimizer that reduces its gradients."""

from collections.abc import Mapping, Sequence
from typing import Any

from .compression import Compression
from .library import keras
from .optimizer import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,  # noqa: FBT001, FBT002  Horovod's signature
) -> Any:
    """A model that was saved, with its optimizer wrapped by `DistributedOptimizer`; what the optimizer had learned is kept.

    Args:
        filepath: of a `.keras` file, saved with a wrapped optimizer or with a plain one.
        custom_optimizers: classes of optimizers that are not Keras's.
        custom_objects: other classes and functions, by name.
        compression: how gradients are sent, one of `Compression`.
        legacy_opts: taken for compatibility: Keras 3 has no older optimizers.
    """
    del legacy_opts
    known: dict[str, Any] = {each.__name__: each for each in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        model.optimizer = DistributedOptimizer(optimizer, compression=compression)
        if keras.backend.backend() == "tensorflow":
            model.jit_compile = False
        model.train_function = None
    return model
