"""Dust from a quarry, tomorrow's values by attention over a week, TensorFlow: gradients of four batches make an update.

So three batches of four end without a reduction and an update, and the fourth is longer.  Nothing is wrong.
"""

import frameworks_run
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

HOURS, VALUES, BATCH, WIDTH, HEADS, PASSES = 84, 6, 12, 64, 4, 4


class Week(tf.keras.layers.Layer):
    """Attention and a perceptron, normalised before."""

    def __init__(self) -> None:
        super().__init__()
        layers = tf.keras.layers
        self.attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]
        self.wide, self.narrow = layers.Dense(2 * WIDTH, "gelu"), layers.Dense(WIDTH)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        y = self.norms[0](x)
        x = x + self.attention(y, y)
        return x + self.narrow(self.wide(self.norms[1](x)))


def forecaster() -> tf.keras.Model:
    """Seven days of two-hourly values in, a day out."""
    seen = tf.keras.Input((HOURS, VALUES))
    x = tf.keras.layers.Dense(WIDTH)(seen)
    for _ in range(3):
        x = Week()(x)
    x = tf.keras.layers.LayerNormalization()(x)
    return tf.keras.Model(seen, tf.keras.layers.Dense(12)(x[:, -1]))


def weather(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Wind, rain, blasting, and the dust that comes of it."""
    dice = np.random.default_rng(seed)
    values = dice.normal(size=(count, HOURS + 12, VALUES)).astype("float32").cumsum(1) / 5
    dust = np.maximum(values[:, HOURS:, 0] - values[:, HOURS:, 1], 0)
    return values[:, :HOURS], dust


class Training:
    """The forecaster and how it learns."""

    def __init__(self, run: frameworks_run.Run) -> None:
        self.run = run
        self.model = forecaster()
        self.optimizer = hvd.DistributedOptimizer(
            tf.keras.optimizers.Adam(1e-3, clipnorm=1.0), backward_passes_per_step=PASSES
        )
        self.optimizer.build(self.model.trainable_variables)
        hvd.broadcast_variables(self.model.variables, root_rank=0)

    @tf.function(reduce_retracing=True)
    def learn(self, values: tf.Tensor, dust: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(self.model(values, training=True) - dust))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        return loss

    def train(self) -> None:
        dataset = tf.data.Dataset.from_tensor_slices(weather(self.run.rank, 30 * BATCH)).repeat()
        dataset = dataset.shuffle(300, seed=1).batch(BATCH).prefetch(2)
        losses = [self.learn(values, dust) for values, dust in self.run.batches(dataset)]
        if self.run.rank == 0:
            print(f"loss {np.mean(losses[:10]):.3f} to {np.mean(losses[-10:]):.3f}")


run = frameworks_run.Run(hvd)
tf.keras.utils.set_random_seed(31)
Training(run).train()
run.close()
