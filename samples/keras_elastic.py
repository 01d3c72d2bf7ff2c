"""Keras that goes on when ranks come and go, as Horovod's elastic scripts are written; on made-up data.

tl-run -np 2 --min-np 1 python samples/keras_elastic.py
"""

import argparse

import horovod.keras as hvd
import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--batches", type=int, default=20)
options = parser.parse_args()

hvd.init()

random = np.random.default_rng(hvd.rank())
inputs = random.normal(size=(options.batches * 16, 8)).astype("float32")
targets = inputs.sum(axis=1, keepdims=True)

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
rate = 0.005
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(rate * hvd.size())), loss="mse")


def on_state_reset():
    model.optimizer.learning_rate = rate * hvd.size()


state = hvd.elastic.KerasState(model, batch=0, epoch=0)
state.register_reset_callbacks([on_state_reset])


@hvd.elastic.run
def train(state):
    callbacks = [
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=10),
    ]
    return model.fit(
        inputs, targets, batch_size=16, epochs=options.epochs - state.epoch, verbose=0, callbacks=callbacks
    )


history = train(state)
print(f"rank {hvd.rank()} of {hvd.size()}: {state.epoch} epochs, loss {history.history['loss'][-1]:.3f}")
