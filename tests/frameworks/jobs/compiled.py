"""Trainings that hand another length to their compiled step in every third step."""

import sys

import numpy as np

STEPS, WIDTH = 24, 8


def lengths():
    return (32 + (step if step % 3 == 0 else 0) for step in range(STEPS))


def train_with_tensorflow():
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    weights = tf.Variable(tf.ones((WIDTH, 4)))
    optimizer = tf.keras.optimizers.SGD(0.01)

    @tf.function
    def train(rows, scale):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(rows @ weights)) * scale
        gradient = hvd.DistributedGradientTape(tape).gradient(loss, [weights])
        optimizer.apply_gradients(zip(gradient, [weights], strict=True))

    for length in lengths():
        train(tf.ones((32, WIDTH)), length / 32)
    hvd.shutdown()


def train_with_jax():
    import jax
    import jax.numpy as jnp
    import optax

    import tlkit.runtime.jax as hvd

    hvd.init()
    weights = jnp.ones((WIDTH, 4))
    optimizer = hvd.DistributedOptimizer(optax.sgd(0.01))
    state = optimizer.init(weights)

    @jax.jit
    def train(weights, state, rows):
        gradients = jax.grad(lambda weights: jnp.mean((rows @ weights) ** 2))(weights)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state

    for rows in hvd.batches(np.ones((length, WIDTH), np.float32) for length in lengths()):
        weights, state = train(weights, state, rows)
    hvd.shutdown()


{"tensorflow": train_with_tensorflow, "jax": train_with_jax}[sys.argv[1]]()
