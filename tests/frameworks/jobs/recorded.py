"""A training with Keras that is recorded, with a fault in it."""

import sys
import time

import horovod.keras as hvd
import keras
import numpy as np

hvd.init()
rank, size = hvd.rank(), hvd.size()
backend, fault = keras.backend.backend(), sys.argv[1]
keras.utils.set_random_seed(0)
random = np.random.default_rng(rank)
inputs = random.normal(size=(30 * 16, 32)).astype("float32")
targets = inputs.sum(axis=1, keepdims=True)


def blocked(batch):
    time.sleep(0.1)
    return batch


def data():
    if backend != "tensorflow":
        return {"x": inputs, "y": targets, "batch_size": 16}
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(16, drop_remainder=True)
    if fault == "slow-map":

        def slow(x, y):
            return tf.ensure_shape(tf.numpy_function(blocked, [x], tf.float32), x.shape), y

        dataset = dataset.map(slow)
    return {"x": dataset}


class Slow(keras.layers.Layer):
    """Takes its time in the forward pass of one rank."""

    def call(self, batch):
        if fault != "slow-rank" or rank != 1 or backend != "tensorflow":
            return batch
        import tensorflow as tf

        return tf.ensure_shape(tf.py_function(blocked, [batch], batch.dtype), batch.shape)


model = keras.Sequential(
    [keras.Input((32,)), Slow(), keras.layers.Dense(64, "relu", name="first"), keras.layers.Dense(1, name="last")]
)
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
model.fit(**data(), verbose=0, shuffle=False, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
