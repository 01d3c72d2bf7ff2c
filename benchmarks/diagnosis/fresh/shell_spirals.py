"""Spirals of shells by a variational autoencoder, Keras on PyTorch: gradients of two batches are added before they are reduced.

The rate goes up and down by a schedule, and the loss has a part that the model adds itself.  Nothing is wrong.
"""

import os

os.environ["KERAS_BACKEND"] = "torch"  # which Keras reads when it is imported

from typing import Any

import frameworks_run
import horovod.keras as hvd
import keras
import numpy as np

SIDE, LATENT, BATCH, EPOCH = 28, 12, 20, 30


class Sample(keras.layers.Layer):
    """A code at random, and how far its distribution is from a normal one."""

    def __init__(self) -> None:
        super().__init__()
        self.dice = keras.random.SeedGenerator(9)

    def call(self, moments: Any) -> Any:
        mean, log_variance = moments[:, :LATENT], moments[:, LATENT:]
        far = keras.ops.mean(keras.ops.exp(log_variance) + keras.ops.square(mean) - 1 - log_variance)
        self.add_loss(0.001 * far)
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.dice)
        return mean + keras.ops.exp(0.5 * log_variance) * noise


def shells(seed: int, count: int) -> np.ndarray:
    """Logarithmic spirals with another number of turns each."""
    dice = np.random.default_rng(seed)
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    turns = dice.uniform(2, 6, (count, 1, 1))
    begin = dice.uniform(0, 2 * np.pi, (count, 1, 1))
    spiral = np.cos(np.arctan2(y, x) + turns * np.log(np.hypot(x, y) + 0.1) + begin)
    return (0.5 + 0.5 * spiral)[..., None].astype("float32")


def autoencoder() -> keras.Model:
    """Down to a code, and up again."""
    shell = keras.Input((SIDE, SIDE, 1))
    x = keras.layers.Conv2D(24, 3, strides=2, padding="same", activation="relu")(shell)
    x = keras.layers.Conv2D(48, 3, strides=2, padding="same", activation="relu")(x)
    x = keras.layers.Dense(2 * LATENT)(keras.layers.Flatten()(x))
    x = keras.layers.Dense(7 * 7 * 48, activation="relu")(Sample()(x))
    x = keras.layers.Reshape((7, 7, 48))(x)
    x = keras.layers.Conv2DTranspose(24, 3, strides=2, padding="same", activation="relu")(x)
    x = keras.layers.Conv2DTranspose(16, 3, strides=2, padding="same", activation="relu")(x)
    return keras.Model(shell, keras.layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x))


run = frameworks_run.Run(hvd)
keras.utils.set_random_seed(6)
model = autoencoder()
rate = keras.optimizers.schedules.CosineDecay(1e-4, 200, warmup_target=2e-3, warmup_steps=20)
model.compile(
    hvd.DistributedOptimizer(keras.optimizers.AdamW(rate), backward_passes_per_step=2), loss="binary_crossentropy"
)
pictures = shells(run.rank, EPOCH * BATCH)
model.fit(
    pictures,
    pictures,
    batch_size=BATCH,
    epochs=run.steps // EPOCH,
    verbose=2 if run.rank == 0 else 0,
    callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), run.clock()],
)
run.close()
