"""A herbarium, Keras's `fit` over a tf.data pipeline: sheets are PNG, and are turned a little before they are learned.

They are turned one by one by SciPy in a tf.py_function, where all threads of the pipeline share one interpreter.  Without the
fault TensorFlow turns whole batches.
"""

import frameworks_run
import horovod.keras as hvd
import keras
import numpy as np
import tensorflow as tf
from scipy import ndimage

SIDE, FAMILIES, BATCH, SHEETS = 72, 12, 16, 320
AUTO = tf.data.AUTOTUNE


def make_sheets(seed: int) -> tuple[list[bytes], np.ndarray]:
    """A flower of as many petals as its family has."""
    dice = np.random.default_rng(seed)
    families = dice.integers(FAMILIES, size=SHEETS)
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    angle, away = np.arctan2(y, x), np.hypot(x, y)
    sheets = []
    for family in families:
        petals = np.cos(angle * (family + 2)) * 0.3 + 0.5 > away
        image = petals[..., None] * dice.integers(60, 200, 3) + dice.integers(40, size=(SIDE, SIDE, 3))
        sheets.append(tf.io.encode_png(image.astype("uint8")).numpy())
    return sheets, families


def decode(png: tf.Tensor) -> tf.Tensor:
    """Values from 0 to 1."""
    return tf.image.convert_image_dtype(tf.io.decode_png(png, channels=3), tf.float32)


dice = np.random.default_rng(5)


def turned(png: tf.Tensor) -> np.ndarray:
    """A sheet, as it might lie otherwise."""
    image = decode(png).numpy()
    return ndimage.rotate(image, dice.uniform(-25, 25), reshape=False, order=2, mode="nearest")


def turned_one_by_one(sheets: tf.data.Dataset) -> tf.data.Dataset:
    """Each sheet by SciPy."""

    def turn(png: tf.Tensor, family: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.py_function(turned, [png], tf.float32)
        return tf.ensure_shape(image, (SIDE, SIDE, 3)), family

    return sheets.map(turn, num_parallel_calls=AUTO).batch(BATCH)


def turned_in_batches(sheets: tf.data.Dataset) -> tf.data.Dataset:
    """A batch by TensorFlow."""
    turn = keras.layers.RandomRotation(25 / 360, fill_mode="nearest")
    decoded = sheets.map(lambda png, family: (decode(png), family), num_parallel_calls=AUTO).batch(BATCH)
    return decoded.map(lambda images, families: (turn(images, training=True), families), num_parallel_calls=AUTO)


run = frameworks_run.Run(hvd)
keras.utils.set_random_seed(21)
sheets = tf.data.Dataset.from_tensor_slices(make_sheets(run.rank)).shuffle(SHEETS).repeat()
dataset = (turned_one_by_one if run.is_faulty else turned_in_batches)(sheets).prefetch(AUTO)
layers = []
for width in (16, 24, 32):
    layers += [
        keras.layers.Conv2D(width, 3, strides=2 if width == 16 else 1, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
    ]
model = keras.Sequential(
    [
        keras.Input((SIDE, SIDE, 3)),
        *layers,
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(FAMILIES, activation="softmax"),
    ]
)
model.compile(
    hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3)), "sparse_categorical_crossentropy", metrics=["accuracy"]
)
model.fit(
    dataset,
    epochs=run.steps // 20,
    steps_per_epoch=20,
    verbose=2 if run.rank == 0 else 0,
    callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback(), run.clock()],
)
run.close()
