"""Small gradients travel to Python and back as one tensor.

To hand a tensor over costs as much as to copy some ten thousand bytes, so a graph puts small ones of a dtype one behind the other
before the call, and takes the result apart after it.  Large ones are handed over as they are, without a copy.
"""

from collections.abc import Sequence
from typing import Any, Final

import tensorflow as tf

from ..torch.flat import Parcel

#: Gradients up to this size are packed.
MAX_PACKED_NBYTES: Final = 64 * 1024


def plan(tensors: Sequence[Any]) -> tuple[Parcel, ...]:
    """What is to be packed with what: the large ones by themselves, small ones of a dtype and device together.

    In eager execution, and where a shape is not known before it is there, nothing is.
    """
    alike: dict[Any, list[tuple[int, int]]] = {}
    for place, tensor in enumerate(tensors):
        numel = None if tf.executing_eagerly() else tensor.shape.num_elements()
        is_small = numel is not None and numel * tensor.dtype.size <= MAX_PACKED_NBYTES
        alike.setdefault((tensor.dtype, tensor.device) if is_small else place, []).append((place, numel or 0))
    return tuple(map(tuple, alike.values()))


def pack(tensors: Sequence[Any], parcels: Sequence[Parcel]) -> list[Any]:
    """Tensors as they are handed over."""
    packed = []
    for parcel in parcels:
        chosen = [tensors[place] for place, _ in parcel]
        packed.append(chosen[0] if len(chosen) == 1 else tf.concat([tf.reshape(each, [-1]) for each in chosen], 0))
    return packed


def unpack(packed: Sequence[Any], parcels: Sequence[Parcel], tensors: Sequence[Any]) -> list[Any]:
    """What came of them, in the order and shapes of the tensors that `pack` took."""
    made = list(tensors)
    for whole, parcel in zip(packed, parcels, strict=True):
        parts = [whole] if len(parcel) == 1 else tf.split(whole, [numel for _, numel in parcel])
        for part, (place, _) in zip(parts, parcel, strict=True):
            made[place] = part if len(parcel) == 1 else tf.reshape(part, tensors[place].shape)
    return made
