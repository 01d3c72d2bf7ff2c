"""Rockslides from the records of geophones: second moments of the channels, and a classifier of them, TensorFlow.

The moments are computed by tf.map_fn, one record at a time, forward and backward.  Without the fault by one product for all.
"""

import frameworks_run
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

TICKS, CHANNELS, BATCH, WIDTH, KINDS = 40, 12, 192, 20, 4


class Slides(tf.Module):
    """Filters over time, how the filtered channels vary with each other, and what that means."""

    def __init__(self, *, one_by_one: bool) -> None:
        super().__init__()
        self.one_by_one = one_by_one
        layers = tf.keras.layers
        self.filters = tf.keras.Sequential(
            [
                tf.keras.Input((TICKS, CHANNELS)),
                layers.Conv1D(32, 5, padding="same", activation="relu"),
                layers.Conv1D(WIDTH, 5, padding="same"),
            ]
        )
        self.kind = tf.keras.Sequential(
            [tf.keras.Input((WIDTH, WIDTH)), layers.Flatten(), layers.Dense(128, "relu"), layers.Dense(KINDS)]
        )
        self.weights = self.filters.trainable_variables + self.kind.trainable_variables

    @staticmethod
    def moments(record: tf.Tensor) -> tf.Tensor:
        """Of (ticks, channels)."""
        centred = record - tf.reduce_mean(record, 0, keepdims=True)
        spread = tf.matmul(centred, centred, transpose_a=True) / TICKS
        scale = tf.sqrt(tf.linalg.diag_part(spread) + 1e-3)
        return spread / (scale[:, None] * scale[None, :])

    @staticmethod
    def all_moments(records: tf.Tensor) -> tf.Tensor:
        """Of (records, ticks, channels)."""
        centred = records - tf.reduce_mean(records, 1, keepdims=True)
        spread = tf.matmul(centred, centred, transpose_a=True) / TICKS
        scale = tf.sqrt(tf.linalg.diag_part(spread) + 1e-3)
        return spread / (scale[:, :, None] * scale[:, None, :])

    def __call__(self, records: tf.Tensor) -> tf.Tensor:
        filtered = self.filters(records)
        return self.kind(tf.map_fn(self.moments, filtered) if self.one_by_one else self.all_moments(filtered))


def geophones(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Channels that move together in one of four ways."""
    dice = np.random.default_rng(seed)
    kinds = dice.integers(KINDS, size=count)
    mixes = np.random.default_rng(0).normal(size=(KINDS, 3, CHANNELS))
    sources = dice.normal(size=(count, TICKS, 3)).cumsum(1) / 4
    records = np.einsum("ntk,nkc->ntc", sources, mixes[kinds]) + dice.normal(0, 0.5, (count, TICKS, CHANNELS))
    return records.astype("float32"), kinds


run = frameworks_run.Run(hvd)
tf.keras.utils.set_random_seed(21)
slides = Slides(one_by_one=run.is_faulty)
optimizer = tf.keras.optimizers.AdamW(1e-3)
optimizer.build(slides.weights)
hvd.broadcast_variables(slides.weights, root_rank=0)


@tf.function
def train_step(records: tf.Tensor, kinds: tf.Tensor) -> tf.Tensor:
    """One update."""
    with tf.GradientTape() as tape:
        losses = tf.keras.losses.sparse_categorical_crossentropy(kinds, slides(records), from_logits=True)
        loss = tf.reduce_mean(losses)
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, slides.weights)
    optimizer.apply_gradients(zip(gradients, slides.weights, strict=True))
    return loss


dataset = tf.data.Dataset.from_tensor_slices(geophones(run.rank, 24 * BATCH)).shuffle(2000).repeat()
dataset = dataset.batch(BATCH, drop_remainder=True).prefetch(2)
seen = tf.keras.metrics.Mean()
for records, kinds in run.batches(dataset):
    seen.update_state(train_step(records, kinds))
    if run.step % 60 == 0 and run.rank == 0:
        print(f"{run.step}: {float(seen.result()):.3f}")
        seen.reset_state()
run.close()
