"""Pollen of birches from the weather, Keras on JAX: the spectral norms of the layers are watched by a callback.

Rank 1 has it, since rank 0 has the log already, and computes them after each batch.  Without the fault it does so once an epoch.
"""

import os

os.environ["KERAS_BACKEND"] = "jax"  # which Keras reads when it is imported

from typing import Any

import frameworks_run
import horovod.keras as hvd
import keras
import numpy as np

DAYS, VALUES, BATCH, EPOCH = 30, 12, 32, 24


class SpectralNorms(keras.callbacks.Callback):
    """The largest singular value of each kernel, which says whether the training gets out of hand."""

    def __init__(self, *, each_batch: bool) -> None:
        super().__init__()
        self.each_batch = each_batch
        self.norms: list[list[float]] = []

    def measure(self) -> None:
        kernels = [weight for weight in self.model.get_weights() if weight.ndim > 1]
        self.norms.append([float(np.linalg.norm(kernel.reshape(-1, kernel.shape[-1]), 2)) for kernel in kernels])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002  a callback's signature
        if self.each_batch:
            self.measure()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002  a callback's signature
        self.measure()


def make_weather(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Thirty days of weather, and the pollen of the next three."""
    dice = np.random.default_rng(seed)
    weather = dice.normal(size=(count, DAYS, VALUES)).astype("float32").cumsum(1) / 4
    warmth = weather[:, -10:, 0].mean(1, keepdims=True) - 0.5 * weather[:, -3:, 1].max(1, keepdims=True)
    return weather, np.log1p(np.exp(warmth + np.array([[0.0, 0.2, 0.4]], "float32")))


run = frameworks_run.Run(hvd)
keras.utils.set_random_seed(8)
model = keras.Sequential(
    [
        keras.Input((DAYS, VALUES)),
        keras.layers.Conv1D(64, 5, activation="gelu"),
        keras.layers.Conv1D(96, 5, activation="gelu"),
        keras.layers.Flatten(),
        keras.layers.Dense(256, activation="gelu"),
        keras.layers.Dense(256, activation="gelu"),
        keras.layers.Dense(3, activation="softplus"),
    ]
)
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3)), loss="mse")
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
if run.rank == 1:
    callbacks.append(SpectralNorms(each_batch=run.is_faulty))
weather, pollen = make_weather(run.rank, EPOCH * BATCH)
model.fit(
    weather,
    pollen,
    batch_size=BATCH,
    epochs=run.steps // EPOCH,
    verbose=2 if run.rank == 0 else 0,
    callbacks=[*callbacks, run.clock()],
)
run.close()
