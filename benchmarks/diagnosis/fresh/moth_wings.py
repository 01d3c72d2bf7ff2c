"""Moths by their wings, Keras's `fit` over tf.data: pictures are decoded in the first epoch and come from memory after it.

So the first epoch (of ten) takes longer than the others; the rate is lowered on a plateau, augmentation is a layer of the model,
and there is one evaluation, after the training.  Nothing is wrong.
"""

import frameworks_run
import horovod.keras as hvd
import keras
import numpy as np
import tensorflow as tf

SIDE, KINDS, BATCH, EPOCH = 40, 8, 16, 12


def photograph(seed: int, count: int) -> tuple[list[bytes], np.ndarray]:
    """Wings with bands, as PNG."""
    dice = np.random.default_rng(seed)
    kinds = dice.integers(KINDS, size=count)
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    pictures = []
    for kind in kinds:
        bands = np.sin((2 + kind) * np.hypot(x, y) * np.pi + dice.uniform(0, 0.5))
        wing = (np.abs(x) * 1.5 + np.abs(y) < 1.2)[..., None] * (0.5 + 0.3 * bands[..., None])
        noisy = wing + dice.normal(0, 0.05, (SIDE, SIDE, 3))
        pictures.append(tf.io.encode_png((noisy.clip(0, 1) * 255).astype("uint8")).numpy())
    return pictures, kinds


def pipeline(seed: int, count: int, *, is_training: bool) -> tf.data.Dataset:
    """Decoded once, then shuffled from memory."""

    def decode(png: tf.Tensor, kind: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        picture = tf.ensure_shape(tf.io.decode_png(png, 3), (SIDE, SIDE, 3))
        return tf.cast(picture, tf.float32) / 255, kind

    dataset = tf.data.Dataset.from_tensor_slices(photograph(seed, count)).map(decode).cache()
    if is_training:
        dataset = dataset.shuffle(count, seed=seed)
    return dataset.batch(BATCH, drop_remainder=True).prefetch(2)


def wings() -> keras.Model:
    """Flips, convolutions, a score for each kind."""
    layers = [keras.Input((SIDE, SIDE, 3)), keras.layers.RandomFlip("horizontal"), keras.layers.RandomContrast(0.2)]
    for width in (24, 40, 64):
        layers += [
            keras.layers.Conv2D(width, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.Activation("silu"),
            keras.layers.MaxPooling2D(),
        ]
    layers += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dropout(0.2), keras.layers.Dense(KINDS)]
    return keras.Sequential(layers)


def main() -> None:
    """The training, and what it has come to."""
    run = frameworks_run.Run(hvd)
    keras.utils.set_random_seed(13)
    model = wings()
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        pipeline(run.rank, EPOCH * BATCH, is_training=True),
        epochs=run.steps // EPOCH,
        verbose=2 if run.rank == 0 else 0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=2, factor=0.5),
            run.clock(),
        ],
    )
    found = model.evaluate(pipeline(99, 4 * BATCH, is_training=False), verbose=0, return_dict=True)
    if run.rank == 0:
        print(found)
    run.close()


main()
