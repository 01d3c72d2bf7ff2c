"""Elastic Keras as Horovod's scripts have it; rank 1 is killed in the second epoch, between two commits."""

import os
import signal
import sys

import horovod.keras as hvd
import keras
import numpy as np

hvd.init()
inputs = np.random.default_rng(hvd.rank()).normal(size=(10 * 16, 8)).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01 * hvd.size())), loss="mse")
state = hvd.elastic.KerasState(model, batch=0, epoch=0)
sizes = []


class Killed(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if hvd.size() == 2 and hvd.rank() == 1 and state.epoch == 1 and batch == 6:
            os.kill(os.getpid(), signal.SIGKILL)


@hvd.elastic.run
def train(state):
    sizes.append([hvd.size(), state.epoch])
    callbacks = [
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=5),
        Killed(),
    ]
    model.fit(inputs, inputs[:, :1], batch_size=16, epochs=4 - state.epoch, verbose=0, callbacks=callbacks)


train(state)
sys.stdout.write(f"DONE {sizes} after {state.epoch} epochs\n")
