"""Smaller gradients on the wire."""

from typing import Any

import torch


class Compressor:
    """What a compressor does; users write their own with these two methods."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor to send, and what `decompress` will need."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor as it was before, up to what compression lost."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends what it gets."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """See `Compressor`."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """See `Compressor`."""
        del ctx
        return tensor


def _cast_for_transfer(tensor: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, Any]:
    """Floating tensors go as `dtype`; others as they are."""
    return (tensor.to(dtype) if tensor.is_floating_point() else tensor), tensor.dtype


class FP16Compressor(Compressor):
    """Sends floating tensors as float16; the sum is taken in float16, too."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """See `Compressor`."""
        return _cast_for_transfer(tensor, torch.float16)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """See `Compressor`."""
        return tensor.to(ctx)


class BF16Compressor(Compressor):
    """Sends floating tensors as bfloat16: the range of float32 with fewer digits."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """See `Compressor`."""
        return _cast_for_transfer(tensor, torch.bfloat16)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """See `Compressor`."""
        return tensor.to(ctx)


class Compression:
    """The compressors to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
