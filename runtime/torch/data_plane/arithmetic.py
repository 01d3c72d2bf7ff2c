"""What is computed with tensors besides the collective itself."""

from typing import Final

import torch

from ...core.operations import ReduceOp

_IDENTITIES: Final = {ReduceOp.PRODUCT: 1.0, ReduceOp.MIN: float("inf"), ReduceOp.MAX: float("-inf")}


def scale(tensor: torch.Tensor, factor: float) -> None:
    """Multiply in place.  Integers are multiplied in double precision and truncated towards zero, as Horovod does."""
    if factor == 1.0:
        return
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.mul_(factor)
    else:
        tensor.copy_((tensor.double() * factor).trunc_())


def neutral(op: ReduceOp, tensor: torch.Tensor) -> None:
    """Fill a tensor with what changes no result: zeros for a sum, the largest value for a minimum and so on."""
    value = _IDENTITIES.get(op, 0.0)
    if value in {0.0, 1.0} or tensor.is_floating_point():
        tensor.fill_(value)
    else:
        limits = torch.iinfo(tensor.dtype)
        tensor.fill_(limits.max if value > 0 else limits.min)
