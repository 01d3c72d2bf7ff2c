"""Traffic signs with Keras's `fit`, images in memory: run_eagerly=True was left from a search for a mistake in the loss.

Without the fault the step is compiled as Keras does by itself.
"""

import frameworks_run
import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from tensorflow import keras

SIDE, SIGNS, BATCH, IMAGES = 32, 18, 32, 960


def make_signs(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rings, triangles and bars in a few colours."""
    dice = np.random.default_rng(seed)
    signs = dice.integers(SIGNS, size=IMAGES)
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    shapes = [np.abs(np.hypot(x, y) - 0.6) < 0.2, np.abs(x) + y < 0.5, np.abs(y) < 0.25]
    colours = np.array([[1, 0, 0], [0, 0, 1], [1, 1, 0], [1, 1, 1], [0, 1, 0], [1, 0.5, 0]])
    images = np.stack([shapes[sign % 3][..., None] * colours[sign // 3] for sign in signs])
    return (images + dice.normal(0, 0.3, images.shape)).astype("float32"), signs


class Smoothed(keras.losses.Loss):
    """Cross entropy with smoothed labels, and less weight for what is easy."""

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        labels = tf.one_hot(tf.cast(tf.reshape(y_true, [-1]), tf.int32), SIGNS) * 0.9 + 0.1 / SIGNS
        logs = tf.nn.log_softmax(y_pred)
        return -tf.reduce_sum(labels * tf.square(1 - tf.exp(logs)) * logs, axis=-1)


def block(x: tf.Tensor, width: int) -> tf.Tensor:
    """A residual block."""
    before = keras.layers.Conv2D(width, 1, strides=2)(x)
    for number in range(2):
        x = keras.layers.SeparableConv2D(width, 3, strides=2 - number, padding="same", use_bias=False)(x)
        x = keras.layers.BatchNormalization()(x)
        x = keras.layers.Activation("relu")(x)
    return keras.layers.Add()([before, x])


run = frameworks_run.Run(hvd)
keras.utils.set_random_seed(4)
image = keras.Input((SIDE, SIDE, 3))
features = keras.layers.Conv2D(16, 3, padding="same")(image)
for width in (32, 48):
    features = block(features, width)
scores = keras.layers.Dense(SIGNS)(keras.layers.Dropout(0.2)(keras.layers.GlobalAveragePooling2D()(features)))
model = keras.Model(image, scores)
model.compile(
    optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * run.size, momentum=0.9, nesterov=True)),
    loss=Smoothed(),
    metrics=["accuracy"],
    run_eagerly=run.is_faulty,
)
images, signs = make_signs(run.rank)
model.fit(
    images,
    signs,
    batch_size=BATCH,
    epochs=run.steps // (IMAGES // BATCH),
    verbose=2 if run.rank == 0 else 0,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.01 * run.size, warmup_epochs=2),
        run.clock(),
    ],
)
run.close()
