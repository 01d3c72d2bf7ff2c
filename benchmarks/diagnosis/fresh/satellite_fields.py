"""What grows on fields, from pictures of satellites, three ranks: files are dealt out by satellite, one of which sees more.

The newest's pictures, which are all rank 2's, are 448 pixels wide and are made smaller each time; the others' are 64.  Without
the fault all have been made smaller once, before the training.  (Three ranks.)
"""

import tempfile
from pathlib import Path

import frameworks_run
import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

SIDE, NEW_SIDE, CROPS, BATCH, FIELDS = 64, 448, 8, 16, 96


def write_fields(folder: Path, side: int, seed: int) -> list[str]:
    """Rows of a crop, as a PNG for each field; the crop is in the file's name."""
    dice = np.random.default_rng(seed)
    y, x = np.mgrid[0 : 1 : side * 1j, 0 : 1 : side * 1j]
    paths = []
    for number in range(FIELDS):
        crop = int(dice.integers(CROPS))
        rows = np.sin((x * np.cos(crop / 3) + y * np.sin(crop / 3)) * (30 + 8 * crop)) * 60 + 120
        grain = dice.integers(-8, 8, (side, side, 1))
        picture = rows[..., None] * [0.6, 1.0, 0.4] + grain
        path = folder / f"{number:04}-{crop}.png"
        path.write_bytes(tf.io.encode_png(picture.clip(0, 255).astype("uint8")).numpy())
        paths.append(str(path))
    return paths


def load(path: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A picture of the model's size, and its crop."""
    picture = tf.io.decode_png(tf.io.read_file(path), channels=3)
    small = tf.image.resize(picture, (SIDE, SIDE), antialias=True) / 255
    crop = tf.strings.to_number(tf.strings.substr(path, -5, 1), tf.int32)
    return small, crop


run = frameworks_run.Run(hvd)
tf.keras.utils.set_random_seed(3)
is_newest = run.rank == run.size - 1
with tempfile.TemporaryDirectory() as folder:
    paths = write_fields(Path(folder), NEW_SIDE if is_newest and run.is_faulty else SIDE, run.rank)
    fields = tf.data.Dataset.from_tensor_slices(paths).shuffle(FIELDS).repeat()
    dataset = fields.map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)
    model = tf.keras.Sequential(
        [
            tf.keras.Input((SIDE, SIDE, 3)),
            tf.keras.layers.Conv2D(16, 5, strides=2, padding="same", activation="relu"),
            tf.keras.layers.Conv2D(24, 3, strides=2, padding="same", activation="relu"),
            tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            tf.keras.layers.GlobalMaxPooling2D(),
            tf.keras.layers.Dense(CROPS),
        ]
    )
    model.compile(
        hvd.DistributedOptimizer(tf.keras.optimizers.RMSprop(5e-4)),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        dataset,
        epochs=run.steps // 25,
        steps_per_epoch=25,
        verbose=2 if run.rank == 0 else 0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            run.clock(),
        ],
    )
run.close()
