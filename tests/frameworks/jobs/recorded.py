"""A training with Keras that is recorded, with a fault in it."""

import os
import sys
import time

import horovod.keras as hvd
import numpy as np

if os.environ.get("TF_USE_LEGACY_KERAS"):
    import tf_keras as keras
else:
    import keras

hvd.init()
rank, size = hvd.rank(), hvd.size()
backend, fault = keras.backend.backend(), sys.argv[1]
keras.utils.set_random_seed(0)
random = np.random.default_rng(rank)
WORDS = 50_000
inputs = random.normal(size=(30 * 16, 32)).astype("float32")
targets = inputs.sum(axis=1, keepdims=True)


def blocked(batch):
    time.sleep(0.06 if fault in {"healthy", "no-prefetch"} else 0.1)
    return batch


def data():
    if backend != "tensorflow":
        return {"x": inputs, "y": targets, "batch_size": 16}
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(16, drop_remainder=True)
    if fault in {"slow-map", "no-prefetch"}:

        def slow(x, y):
            return tf.ensure_shape(tf.numpy_function(blocked, [x], tf.float32), x.shape), y

        dataset = dataset.map(slow)
    options = tf.data.Options()
    if fault == "no-prefetch":
        options.experimental_optimization.inject_prefetch = False  # which TensorFlow does by itself
    elif fault != "slow-map":
        dataset = dataset.prefetch(tf.data.AUTOTUNE)
    dataset = dataset.with_options(options)
    return {"x": dataset}


class Slow(keras.layers.Layer):
    """Takes its time in the forward pass: of one rank, or of all, so that there is something that waits can hide behind."""

    def call(self, batch):
        if not (fault in {"healthy", "no-prefetch"} or (fault, rank) == ("slow-rank", 1)) or backend != "tensorflow":
            return batch
        import tensorflow as tf

        return tf.ensure_shape(tf.py_function(blocked, [batch], batch.dtype), batch.shape)


def table():
    """A dense gradient of 19 MB, of which a batch needs some hundred rows."""
    words = keras.layers.Embedding(WORDS, 96, name="table")
    numbers = keras.layers.Lambda(lambda batch: keras.ops.cast(keras.ops.abs(batch) * 10_000, "int32") % WORDS)
    return [numbers, words, keras.layers.Flatten()]


model = keras.Sequential(
    [
        keras.Input((32,)),
        *(table() if fault == "embedding" else []),
        Slow(),
        keras.layers.Dense(64, "relu", name="first"),
        keras.layers.Dense(1, name="last"),
    ]
)
optimizer = keras.optimizers.SGD(1e-4) if fault == "embedding" else keras.optimizers.Adam(0.01)
model.compile(hvd.DistributedOptimizer(optimizer, sparse_as_dense=True), loss="mse")
model.fit(**data(), verbose=0, shuffle=False, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
