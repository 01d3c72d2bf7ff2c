"""Breaks in glass fibres, Keras's `fit`: five batches are one call of the compiled function (steps_per_execution).

Callbacks see every fifth batch only, and between them nothing of Python runs.  Nothing is wrong.
"""

import frameworks_run
import horovod.keras as hvd
import keras
import numpy as np
import tensorflow as tf

SAMPLES, BATCH, EPOCH, AT_ONCE = 400, 48, 40, 5


def make_fibres(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Light that is scattered back, with a step where the fibre is broken; and where that is."""
    dice = np.random.default_rng(seed)
    place = np.linspace(0, 1, SAMPLES, dtype="float32")
    breaks = dice.uniform(0.1, 0.9, (count, 1)).astype("float32")
    back = np.exp(-2 * place) * (place < breaks) + 0.5 * np.exp(-np.square((place - breaks) * 150))
    return (back + dice.normal(0, 0.05, back.shape)).astype("float32")[..., None], breaks


run = frameworks_run.Run(hvd)
keras.utils.set_random_seed(5)
layers = [keras.Input((SAMPLES, 1))]
for width in (16, 32, 48):
    layers += [
        keras.layers.Conv1D(width, 7, strides=2, padding="same", use_bias=False),
        keras.layers.BatchNormalization(),
        keras.layers.Activation("relu"),
    ]
model = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
model.compile(
    hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3)),
    loss="huber",
    metrics=["mae"],
    steps_per_execution=AT_ONCE,
)
fibres = tf.data.Dataset.from_tensor_slices(make_fibres(run.rank, EPOCH * BATCH)).cache().shuffle(EPOCH * BATCH)
model.fit(
    fibres.batch(BATCH, drop_remainder=True).prefetch(AT_ONCE),
    epochs=run.steps // EPOCH,
    verbose=2 if run.rank == 0 else 0,
    callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback(), run.clock()],
)
run.close()
