"""What scripts import from `horovod.tensorflow.util`."""

from typing import Any

import tensorflow as tf

from ..horovod.util import check_extension, split_list


def _executing_eagerly() -> bool:
    """Whether operations run at once."""
    return bool(tf.executing_eagerly())


def vars_to_refs(vars: Any) -> Any:  # noqa: A002  Horovod's name
    """Something with a hash for each variable, in the same structure."""
    if isinstance(vars, (list, tuple)):
        return tuple(vars_to_refs(each) for each in vars)
    inner = getattr(vars, "_value", vars)
    return inner.ref()


def refs_to_vars(refs: Any) -> Any:
    """The variables of `vars_to_refs`; those of Keras come back as TensorFlow's."""
    if isinstance(refs, (list, tuple)):
        return [refs_to_vars(each) for each in refs]
    return refs.deref()


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:  # noqa: FBT001, FBT002
    """Whether TensorFlow has a GPU."""
    del ext_base_name, verbose
    return bool(tf.config.list_physical_devices("GPU"))


__all__ = ["_executing_eagerly", "check_extension", "gpu_available", "refs_to_vars", "split_list", "vars_to_refs"]
