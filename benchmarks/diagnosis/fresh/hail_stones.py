"""Sizes of hailstones from the sounds that they make on a plate, Keras's `fit` over a generator.

The generator yields one sound at a time, which tf.data fetches through Python four hundred times a batch.  Without the fault it
yields batches.
"""

from collections.abc import Callable, Iterator

import frameworks_run
import horovod.keras as hvd
import keras
import numpy as np
import tensorflow as tf

SAMPLES, BATCH, KEPT = 96, 384, 8064


def record_hail(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Damped oscillations; heavier stones sound deeper."""
    dice = np.random.default_rng(seed)
    sizes = dice.gamma(4, 0.5, (KEPT, 1)).astype("float32")
    time = np.arange(SAMPLES, dtype="float32")
    sounds = np.sin(time / (1 + sizes)) * np.exp(-time / (10 * sizes + 5))
    return (sounds + dice.normal(0, 0.05, sounds.shape)).astype("float32"), np.log(sizes)


def one_by_one(
    sounds: np.ndarray, sizes: np.ndarray, seed: int
) -> Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]:
    def generate() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        dice = np.random.default_rng(seed)
        while True:
            for index in dice.permutation(KEPT):
                yield sounds[index], sizes[index]

    return generate


def by_batches(
    sounds: np.ndarray, sizes: np.ndarray, seed: int
) -> Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]:
    def generate() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        dice = np.random.default_rng(seed)
        while True:
            for chosen in dice.permutation(KEPT).reshape(-1, BATCH):
                yield sounds[chosen], sizes[chosen]

    return generate


def pipeline(seed: int, *, single: bool) -> tf.data.Dataset:
    """Batches of sounds without end."""
    hail = record_hail(seed)
    lead = () if single else (None,)
    signature = (
        tf.TensorSpec((*lead, SAMPLES), tf.float32),
        tf.TensorSpec((*lead, 1), tf.float32),
    )
    if single:
        dataset = tf.data.Dataset.from_generator(one_by_one(*hail, seed), output_signature=signature)
        return dataset.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    return tf.data.Dataset.from_generator(by_batches(*hail, seed), output_signature=signature).prefetch(
        tf.data.AUTOTUNE
    )


def listener() -> keras.Model:
    """Convolutions over the samples."""
    return keras.Sequential(
        [
            keras.Input((SAMPLES,)),
            keras.layers.Reshape((SAMPLES, 1)),
            keras.layers.Conv1D(24, 7, strides=2, padding="same", activation="relu"),
            keras.layers.Conv1D(48, 5, strides=2, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(1),
        ]
    )


def main() -> None:
    """The training."""
    run = frameworks_run.Run(hvd)
    keras.utils.set_random_seed(5)
    model = listener()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3)), loss="mse", metrics=["mae"])
    model.fit(
        pipeline(run.rank, single=run.is_faulty),
        steps_per_epoch=run.steps // 2,
        epochs=2,
        verbose=2 if run.rank == 0 else 0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), run.clock()],
    )
    run.close()


main()
