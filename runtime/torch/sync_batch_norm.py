"""Batch normalisation over the batches of all ranks."""

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.calls import calling
from ..core.process_sets import ProcessSet, global_process_set
from .operands import Sum, apply
from .reduce_operations import grouped_allreduce_async_
from .submission import synchronize


class _Normalise(torch.autograd.Function):
    """Normalises with the mean and variance over all ranks.

    Forward: counts, sums and sums of squares are added up.  Backward: with y = (x - m) s and N values a channel,
    dx = s (dy - sum(dy)/N - y sum(dy y)/N) (Ioffe and Szegedy, "Batch normalization", 2015), the sums over all ranks.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, eps: float, process_set: ProcessSet, name: str) -> Any:
        axes = [axis for axis in range(x.dim()) if axis != 1]
        wide = x.double() if x.dtype == torch.float64 else x.float()
        count = torch.full((1,), float(x.numel() // max(x.shape[1], 1)), dtype=wide.dtype, device=x.device)
        sums, squares = wide.sum(axes), (wide * wide).sum(axes)
        packed = torch.cat([count, sums, squares])
        packed = _summed(packed, f"{name}.forward", process_set)
        count, sums, squares = packed.split([1, x.shape[1], x.shape[1]])
        mean = sums / count
        variance = (squares / count - mean * mean).clamp_min_(0)
        shape = [1, -1] + [1] * (x.dim() - 2)
        scale = torch.rsqrt(variance + eps)
        y = (wide - mean.view(shape)) * scale.view(shape)
        ctx.save_for_backward(y, scale, count)
        ctx.process_set, ctx.name, ctx.axes, ctx.view, ctx.dtype = process_set, name, axes, shape, x.dtype
        ctx.mark_non_differentiable(mean, variance, count)
        return y.to(x.dtype), mean, variance, count

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        y, scale, count = ctx.saved_tensors
        dy = gradients[0].to(y.dtype)
        packed = torch.cat([dy.sum(ctx.axes), (dy * y).sum(ctx.axes)])
        packed = _summed(packed, f"{ctx.name}.backward", ctx.process_set)
        sum_dy, sum_dy_y = (packed / count).split(scale.numel())
        dx = scale.view(ctx.view) * (dy - sum_dy.view(ctx.view) - y * sum_dy_y.view(ctx.view))
        return dx.to(ctx.dtype), None, None, None


def _summed(packed: torch.Tensor, name: str, process_set: ProcessSet) -> Any:
    """The sum over all ranks."""
    with calling("norm", located=False):
        (total,) = synchronize(grouped_allreduce_async_([packed], name=name, op=Sum, process_set=process_set))
    return total


class SyncBatchNorm(_BatchNorm):
    """`torch.nn.BatchNorm*` whose statistics are taken over all ranks while training; on CPUs, too.

    Arguments are those of `torch.nn.BatchNorm2d`.  On one rank, and for evaluation, it is ordinary batch normalisation.
    """

    _made = 0

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,  # noqa: FBT001, FBT002  torch's signature
        track_running_stats: bool = True,  # noqa: FBT001, FBT002
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Make the layer (see the class)."""
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        # Layers are made in the same order on all ranks; each needs names of its own, since several may be under way.
        SyncBatchNorm._made += 1
        self._operation = f"sync_batch_norm.{SyncBatchNorm._made}"
        self._process_set = process_set

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002  torch's name
        if input.dim() < 2:  # noqa: PLR2004
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  torch's name
        """Normalise a batch of shape (N, C, …)."""
        self._check_input_dim(input)
        if not self.training or (self._process_set.size() or 1) == 1:
            return super().forward(input)
        x: torch.Tensor
        x, mean, variance, count = apply(_Normalise, input, self.eps, self._process_set, self._operation)
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                assert self.num_batches_tracked is not None
                self.num_batches_tracked.add_(1)
                share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
                unbiased = variance * (count / (count - 1).clamp_min(1))
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)
        if not self.affine:
            return x
        shape = [1, -1] + [1] * (input.dim() - 2)
        scaled: torch.Tensor = x * self.weight.view(shape) + self.bias.view(shape)
        return scaled
