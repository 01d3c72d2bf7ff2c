"""Smaller gradients on the wire: TensorFlow's compressors where Keras uses it, and otherwise torch's, which carries the bytes."""

from typing import Any

from .library import keras


def _of_backend() -> Any:
    if keras.backend.backend() == "tensorflow":
        from ..tensorflow import compression  # noqa: PLC0415  with this backend alone

        return compression.Compression
    from ..torch import compression as of_torch  # noqa: PLC0415

    return of_torch.Compression


Compression: Any = _of_backend()

__all__ = ["Compression"]
