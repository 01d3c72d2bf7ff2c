"""TensorFlow's values as torch's, which the transports move, and back; without a copy on the CPU.

8-bit integers are reduced as 32-bit ones, which is what the transports know.
"""

from typing import Any, Final

import tensorflow as tf
import torch

# torch hands it on without exporting it, which type checkers refuse.
from torch._C import _to_dlpack as to_dlpack

from ..torch.arrays import array_to_tensor, tensor_to_array

#: By Horovod's operations, what each takes; bfloat16 beside it.
REDUCIBLE: Final = frozenset(
    {tf.uint8, tf.int8, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.float64},
)
SCATTERABLE: Final = frozenset({tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.float64})
MOVABLE: Final = REDUCIBLE | {tf.uint16, tf.int16, tf.bool}

#: Alignment that TensorFlow's kernels ask of what they are handed, in bytes.
ALIGNMENT: Final = 64


def tensor_to_torch(tensor: Any) -> torch.Tensor:
    """An eager tensor as one of torch on the CPU, of the same memory if it is there already."""
    return array_to_tensor(tensor._numpy() if tensor.device.endswith("CPU:0") else tensor.numpy())  # noqa: SLF001  without a copy


def torch_to_array(tensor: torch.Tensor, dtype: Any) -> Any:
    """A tensor as an array of the same memory.

    Args:
        tensor: on the CPU.
        dtype: TensorFlow's.
    """
    return tensor_to_array(tensor, dtype.as_numpy_dtype)


def torch_to_tensor(tensor: torch.Tensor, dtype: Any) -> Any:
    """A tensor as an eager one of the same memory.

    Args:
        dtype: TensorFlow's.
    """
    if dtype in {tf.bool, tf.uint16} or not tensor.numel() or tensor.data_ptr() % ALIGNMENT:
        # DLPack's booleans are younger than what TensorFlow reads of it.
        return tf.constant(torch_to_array(tensor, dtype), dtype)
    return tf.experimental.dlpack.from_dlpack(to_dlpack(tensor))


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of a dtype in which it can be reduced."""
    return tensor.to(torch.int32) if tensor.dtype in {torch.uint8, torch.int8} else tensor
