"""Smaller gradients on the wire."""

from typing import Any

import tensorflow as tf


class Compressor:
    """What a compressor does; users write their own with these two methods."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and what `decompress` will need."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor as it was before, up to what compression lost."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends what it gets."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """See `Compressor`."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """See `Compressor`."""
        del ctx
        return tensor


class _CastCompressor(Compressor):
    """Sends floating tensors as another dtype; the sum is taken in it, too."""

    dtype: Any

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """See `Compressor`."""
        return (tf.cast(tensor, cls.dtype) if tensor.dtype.is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """See `Compressor`."""
        return tf.cast(tensor, ctx) if ctx.is_floating and tensor.dtype != ctx else tensor


class FP16Compressor(_CastCompressor):
    """Sends floating tensors as float16."""

    dtype = tf.float16


class BF16Compressor(_CastCompressor):
    """Sends floating tensors as bfloat16: the range of float32 with fewer digits."""

    dtype = tf.bfloat16


class Compression:
    """The compressors to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
