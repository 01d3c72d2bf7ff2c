"""Ages of timber from tree rings, Keras on JAX: a loop of our own, which lowers the rate after every thirtieth batch.

It does so by calling compile() with a new optimizer, so JAX compiles the step again, and Adam begins from nothing.  Without the
fault it sets the optimizer's rate.
"""

import os

os.environ["KERAS_BACKEND"] = "jax"  # which Keras reads when it is imported

from collections.abc import Iterator

import frameworks_run
import horovod.keras as hvd
import keras
import numpy as np

RINGS, BATCH = 120, 16


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
    x = keras.layers.Conv1D(32, 5, padding="same")(rings)
    for reach in (1, 2, 4, 8):
        y = keras.layers.LayerNormalization()(x)
        y = keras.layers.Conv1D(32, 3, dilation_rate=reach, padding="same", activation="gelu")(y)
        x = keras.layers.Add()([x, keras.layers.Conv1D(32, 1)(y)])
    return keras.Model(rings, keras.layers.Dense(1)(keras.layers.Flatten()(x)))


class Session:
    """A model that learns from what comes."""

    def __init__(self, *, compiles_again: bool) -> None:
        self.compiles_again = compiles_again
        self.model = dendrochronologist()
        self.rate = 1e-3
        self.prepare()
        hvd.broadcast_variables(self.model.variables, root_rank=0)
        self.losses: list[float] = []

    def prepare(self) -> None:
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(self.rate))
        self.model.compile(optimizer, loss="mse")
        optimizer.build(self.model.trainable_variables)

    def lower_rate(self) -> None:
        self.rate *= 0.9
        if self.compiles_again:
            self.prepare()
        else:
            self.model.optimizer.learning_rate = self.rate

    def learn(self, widths: np.ndarray, years: np.ndarray) -> None:
        self.losses.append(float(self.model.train_on_batch(widths, years)))
        if len(self.losses) % 30 == 0:
            self.lower_rate()


run = frameworks_run.Run(hvd)
keras.utils.set_random_seed(4)
session = Session(compiles_again=run.is_faulty)
for widths, years in run.batches(scanner(run.rank)):
    session.learn(widths, years)
if run.rank == 0:
    print(f"loss {session.losses[0]:.3f} to {session.losses[-1]:.3f}")
run.close()
