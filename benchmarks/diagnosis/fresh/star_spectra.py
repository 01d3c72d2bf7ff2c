"""Classes of stars from their spectra, four ranks, Keras's `fit`: rank 0 keeps the model with ModelCheckpoint(save_freq=4).

Four epochs were meant, but that argument counts batches.  Without the fault it says 'epoch'.
"""

import tempfile
from pathlib import Path

import frameworks_run
import horovod.keras as hvd
import keras
import numpy as np
import tensorflow as tf

LINES, CLASSES, BATCH, EPOCH = 1024, 7, 32, 30


def make_stars(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """A continuum that falls with the class, with absorption lines."""
    dice = np.random.default_rng(seed)
    classes = dice.integers(CLASSES, size=count)
    wave = np.linspace(0, 1, LINES, dtype="float32")
    flux = np.exp(-wave * (1 + classes[:, None] / 3))
    for number in range(6):
        depth = 0.3 * np.abs(np.sin(classes + number))[:, None]
        flux -= depth * np.exp(-np.square((wave - (number + 1) / 7) * 200))
    return (flux + dice.normal(0, 0.02, flux.shape)).astype("float32"), classes


run = frameworks_run.Run(hvd)
keras.utils.set_random_seed(6)
model = keras.Sequential(
    [
        keras.Input((LINES,)),
        keras.layers.Dense(640, activation="silu"),
        keras.layers.LayerNormalization(),
        keras.layers.Dense(320, activation="silu"),
        keras.layers.Dense(CLASSES, activation="softmax"),
    ]
)
model.compile(
    hvd.DistributedOptimizer(keras.optimizers.Adam(5e-4)), "sparse_categorical_crossentropy", metrics=["accuracy"]
)
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
folder = tempfile.TemporaryDirectory()
if run.rank == 0:
    path = Path(folder.name) / "stars.keras"
    callbacks.append(keras.callbacks.ModelCheckpoint(path, save_freq=4 if run.is_faulty else "epoch"))
stars = tf.data.Dataset.from_tensor_slices(make_stars(run.rank, EPOCH * BATCH)).cache()
model.fit(
    stars.shuffle(EPOCH * BATCH).batch(BATCH).prefetch(tf.data.AUTOTUNE),
    epochs=run.steps // EPOCH,
    verbose=2 if run.rank == 0 else 0,
    callbacks=[*callbacks, run.clock()],
)
folder.cleanup()
run.close()
