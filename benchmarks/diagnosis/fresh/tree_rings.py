"""Ages of timber from tree rings, Keras on JAX: a loop of our own calls fit() for each batch that the scanner has made.

Each call makes a dataset, a list of callbacks and an epoch for a single batch.  Without the fault it calls train_on_batch().
"""

import os

os.environ["KERAS_BACKEND"] = "jax"  # which Keras reads when it is imported

from collections.abc import Iterator

import frameworks_run
import horovod.keras as hvd
import keras
import numpy as np

RINGS, BATCH = 100, 16


def scanner(seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Widths of rings, cut from a chronology at some year."""
    dice = np.random.default_rng(seed)
    chronology = np.random.default_rng(0).normal(size=1200).cumsum()
    chronology = chronology - np.convolve(chronology, np.ones(30) / 30, "same")
    while True:
        years = dice.integers(1200 - RINGS, size=BATCH)
        widths = chronology[years[:, None] + np.arange(RINGS)] + dice.normal(0, 0.3, (BATCH, RINGS))
        yield widths[..., None].astype("float32"), (years / 1200).astype("float32")


def dendrochronologist() -> keras.Model:
    """Dilated convolutions with residuals."""
    rings = keras.Input((RINGS, 1))
    x = keras.layers.Conv1D(24, 5, padding="same")(rings)
    for reach in (1, 2, 4, 8):
        y = keras.layers.LayerNormalization()(x)
        y = keras.layers.Conv1D(24, 3, dilation_rate=reach, padding="same", activation="gelu")(y)
        x = keras.layers.Add()([x, keras.layers.Conv1D(24, 1)(y)])
    return keras.Model(rings, keras.layers.Dense(1)(keras.layers.Flatten()(x)))


class Session:
    """A model that learns from what comes."""

    def __init__(self, *, fits: bool) -> None:
        self.fits = fits
        self.model = dendrochronologist()
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(5e-4))
        self.model.compile(optimizer, loss="mse")
        optimizer.build(self.model.trainable_variables)
        hvd.broadcast_variables(self.model.variables, root_rank=0)
        self.losses: list[float] = []

    def learn(self, widths: np.ndarray, years: np.ndarray) -> None:
        if self.fits:
            history = self.model.fit(widths, years, batch_size=len(widths), epochs=1, verbose=0)
            self.losses.append(history.history["loss"][0])
        else:
            self.losses.append(float(self.model.train_on_batch(widths, years)))


run = frameworks_run.Run(hvd)
keras.utils.set_random_seed(4)
session = Session(fits=run.is_faulty)
for widths, years in run.batches(scanner(run.rank)):
    session.learn(widths, years)
if run.rank == 0:
    print(f"loss {session.losses[0]:.3f} to {session.losses[-1]:.3f}")
run.close()
