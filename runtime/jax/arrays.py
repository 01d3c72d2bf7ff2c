"""Arrays of JAX as tensors of torch on the host, and back; on the CPU, outside of callbacks, the memory is the same."""

from typing import Any

import jax
import torch
from torch.utils.dlpack import from_dlpack

from ..torch.arrays import array_to_tensor


def to_tensor(array: Any) -> torch.Tensor:
    """An array as a read-only tensor; arrays on a device are copied to the host."""
    if isinstance(array, jax.Array) and next(iter(array.devices())).platform == "cpu":
        shared: torch.Tensor = from_dlpack(array)
        return shared
    return array_to_tensor(array)


def to_array(tensor: torch.Tensor, like: Any) -> jax.Array:
    """A tensor as an array, on the devices of `like`."""
    array = jax.numpy.from_dlpack(tensor.contiguous())
    if isinstance(like, jax.Array) and next(iter(like.devices())).platform != "cpu":
        return jax.device_put(array, like.sharding)
    return array
