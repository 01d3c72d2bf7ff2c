"""MultiWorkerMirroredStrategy beside ours, recorded: after 20 steps both have the parameters of one process with the whole batch."""

import json
import os
import sys

TIMELINE, *ADDRESSES = sys.argv[1:]
RANK = int(os.environ["HOROVOD_RANK"])
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": ADDRESSES}, "task": {"type": "worker", "index": RANK}})

import keras
import numpy as np
import tensorflow as tf

import tlkit
from tests.frameworks.job import make_checks

# For the recording this is a job of TensorFlow's alone, as a user starts it.
LAUNCHED = {
    name: os.environ.pop(name)
    for name in list(os.environ)
    if name.startswith("HOROVOD_") and name.endswith(("RANK", "SIZE"))
}

STEPS, ROWS = 20, 8
SIZE = len(ADDRESSES)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
recording = tlkit.instrument(TIMELINE)

random = np.random.default_rng(0)
INPUTS = random.normal(size=(STEPS * ROWS, 6)).astype("float32")
TOKENS = random.integers(0, 30, size=(STEPS * ROWS, 3))
TARGETS = random.normal(size=(STEPS * ROWS, 1)).astype("float32")
SHARE = ROWS // SIZE
MINE = np.concatenate([np.arange(s * ROWS + RANK * SHARE, s * ROWS + (RANK + 1) * SHARE) for s in range(STEPS)])


def make_model():
    keras.utils.set_random_seed(0)
    numbers, tokens = keras.Input((6,)), keras.Input((3,), dtype="int32")
    words = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(30, 4)(tokens))
    hidden = keras.layers.Dense(8, activation="tanh")(keras.layers.Concatenate()([numbers, words]))
    return keras.Model([numbers, tokens], keras.layers.Dense(1)(hidden))


def train(model, optimizer, rows, size, wrap=lambda tape: tape, run=None):
    """The loop that TensorFlow's guide has for its strategies: Keras's `fit` takes no batches of several workers."""
    variables = model.trainable_variables
    batches = tf.data.Dataset.from_tensor_slices((INPUTS[rows], TOKENS[rows], TARGETS[rows])).batch(size)

    def replica(x, tokens, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model([x, tokens], training=True) - y) ** 2) / (ROWS if run else size)
        optimizer.apply_gradients(zip(wrap(tape).gradient(loss, variables), variables, strict=True))
        return loss

    @tf.function
    def step(x, tokens, y):
        if run is None:
            return replica(x, tokens, y)
        return strategy.reduce(tf.distribute.ReduceOp.SUM, run(replica, args=(x, tokens, y)), axis=None)

    for x, tokens, y in batches:
        step(x, tokens, y)
    return model.get_weights()


def same(mine, expected):
    for one, other in zip(mine, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=5e-6)


def with_the_strategy():
    with strategy.scope():
        model, optimizer = make_model(), keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)
    trained["strategy"] = train(model, optimizer, MINE, SHARE, run=strategy.run)
    recording.stop()


def alone():
    trained["alone"] = train(make_model(), keras.optimizers.Adam(0.01), np.arange(len(INPUTS)), ROWS)
    same(trained["strategy"], trained["alone"])


def with_ours():
    os.environ.update(LAUNCHED)
    import horovod.tensorflow as hvd

    hvd.init()
    trained["ours"] = train(make_model(), keras.optimizers.Adam(0.01), MINE, SHARE, wrap=hvd.DistributedGradientTape)
    same(trained["ours"], trained["alone"])
    same(trained["ours"], trained["strategy"])
    hvd.shutdown()


trained = {}
make_checks(
    {
        check.__name__: check
        for check in (
            with_the_strategy,
            alone,
            with_ours,
        )
    }
)
