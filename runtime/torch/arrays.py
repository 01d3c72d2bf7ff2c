"""NumPy's arrays as torch's tensors and back, without a copy; for frameworks that hand their values over as arrays.

What a transport does not know travels as something that it does: uint16 as int16 of the same bits.
"""

from typing import Any, Final

import numpy as np
import torch

#: How NumPy's extension calls it, which comes with TensorFlow and JAX.
_BFLOAT16: Final = "bfloat16"


def array_to_tensor(values: Any) -> torch.Tensor:
    """An array, or a number of NumPy, as a tensor of the same memory, to which nothing may be written."""
    array = np.asarray(values)
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = np.array(array, order="C")
    if array.dtype.name == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if array.dtype == np.uint16:
        array = array.view(np.int16)
    return torch.from_numpy(array)


def tensor_to_array(tensor: torch.Tensor, dtype: Any) -> Any:
    """A tensor as an array of the same memory.

    Args:
        tensor: on the CPU.
        dtype: NumPy's, which the tensor had as an array.
    """
    dtype = np.dtype(dtype)
    if dtype.name == _BFLOAT16:
        return tensor.view(torch.int16).numpy().view(dtype)
    array = tensor.numpy()
    return array.view(np.uint16) if dtype == np.uint16 else array
