"""Batch normalisation over the batches of all ranks, as a layer of Keras 3 on TensorFlow."""

from typing import Any

import keras
import tensorflow as tf

from ..core.arguments import Sum
from ..core.process_sets import ProcessSet, global_process_set
from .reduce_operations import allreduce
from .running import public


class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """`keras.layers.BatchNormalization` whose statistics are taken over all ranks while training.

    Each rank counts as much as it has samples, so batches may differ in size.
    """

    def __init__(self, fused: bool | None = False, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:  # noqa: FBT001, FBT002
        """Make the layer.

        Args:
            fused: only False is taken: a fused kernel knows of one batch.
            process_set: the ranks over whose batches it is normalised.
            kwargs: of `keras.layers.BatchNormalization`.

        Raises:
            ValueError: `fused` is not False, or Keras's own synchronisation is asked for, too.
        """
        if fused in {True, None}:
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        if kwargs.pop("synchronized", False):
            raise ValueError("SyncBatchNormalization is synchronised by Horovod's ranks: leave synchronized=True out.")
        super().__init__(**kwargs)
        self._process_set = process_set

    @public  # type: ignore[untyped-decorator]
    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        """Mean and variance over the batches of all ranks."""
        if (self._process_set.size() or 1) == 1:
            mean, variance = super()._moments(inputs, mask)
            return mean, variance
        x = tf.convert_to_tensor(inputs)
        axes = [int(axis) for axis in self._reduction_axes]
        if mask is None:
            kept = tf.ones_like(
                x[..., :1] if self.axis in {-1, len(x.shape) - 1} else tf.gather(x, [0], axis=self.axis)
            )
        else:
            kept = tf.cast(tf.expand_dims(mask, -1), x.dtype)
        count = tf.reshape(tf.reduce_sum(kept), [1])
        sums = tf.reduce_sum(x * kept, axes)
        squares = tf.reduce_sum(x * x * kept, axes)
        channels = x.shape[self.axis]
        packed = tf.concat([count, sums, squares], 0)
        total = allreduce(packed, op=Sum, name=f"sync_batch_norm.{self.path}", process_set=self._process_set)
        everywhere = tf.maximum(total[0], keras.config.epsilon())
        mean = total[1 : channels + 1] / everywhere
        variance = tf.maximum(total[channels + 1 :] / everywhere - mean * mean, 0.0)
        return mean, variance

    def get_config(self) -> dict[str, Any]:
        """See Keras's; the process set is of this job, and no part of it."""
        config: dict[str, Any] = super().get_config()
        config.pop("synchronized", None)
        return config
