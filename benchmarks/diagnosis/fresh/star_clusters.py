"""Which stars belong to a cluster, sets of stars with JAX: weights and Adam's moments are averaged in each step, too.

They are the same on all ranks anyhow, as the gradients are, so three quarters of the bytes are for nothing.  Without the fault
only the gradients are averaged.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import frameworks_run
import jax
import jax.numpy as jnp
import numpy as np
import optax

import tlkit.runtime.jax as hvd

STARS, VALUES, WIDTH, FIELDS = 48, 5, 640, 2


class Training(NamedTuple):
    """All that changes."""

    weights: list[dict[str, Any]]
    state: Any


def fields(seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Places, motions and colours of stars, some of which move together."""
    dice = np.random.default_rng(seed)
    while True:
        stars = dice.normal(size=(FIELDS, STARS, VALUES)).astype("float32")
        inside = dice.random((FIELDS, STARS)) < dice.uniform(0.1, 0.5, (FIELDS, 1))
        common = dice.normal(size=(FIELDS, 1, VALUES))
        yield np.where(inside[..., None], common + 0.2 * stars, stars).astype("float32"), inside.astype("float32")


def make_weights(key: Any) -> list[dict[str, Any]]:
    """For each layer what a star says and what all of them say."""
    sizes = [VALUES, WIDTH, WIDTH, WIDTH, 1]
    layers = []
    for inputs, outputs in pairwise(sizes):
        key, own, all_ = jax.random.split(key, 3)
        scale = 1 / np.sqrt(inputs)
        layers.append(
            {
                "own": jax.random.normal(own, (inputs, outputs)) * scale,
                "all": jax.random.normal(all_, (inputs, outputs)) * scale,
                "bias": jnp.zeros(outputs),
            }
        )
    return layers


def loss_of(weights: list[dict[str, Any]], stars: Any, inside: Any) -> Any:
    """Cross entropy of each star."""
    x = stars
    for number, layer in enumerate(weights):
        x = x @ layer["own"] + x.mean(1, keepdims=True) @ layer["all"] + layer["bias"]
        if number + 1 < len(weights):
            x = jax.nn.relu(x)
    return optax.sigmoid_binary_cross_entropy(x.squeeze(-1), inside).mean()


run = frameworks_run.Run(hvd)
optimizer = hvd.DistributedOptimizer(optax.adam(3e-4))


@jax.jit
def train(training: Training, stars: Any, inside: Any) -> tuple[Training, Any]:
    """One update."""
    loss, gradients = jax.value_and_grad(loss_of)(training.weights, stars, inside)
    updates, state = optimizer.update(gradients, training.state, training.weights)
    return Training(optax.apply_updates(training.weights, updates), state), loss


def agree(training: Training) -> Training:
    """The mean of all ranks of whatever is a number with a fraction."""
    leaves, tree = jax.tree.flatten(training)
    is_mean = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
    means = iter(hvd.allreduce([leaf for leaf, yes in zip(leaves, is_mean, strict=True) if yes], name="agree"))
    return jax.tree.unflatten(tree, [next(means) if yes else leaf for leaf, yes in zip(leaves, is_mean, strict=True)])


weights = hvd.broadcast_parameters(make_weights(jax.random.PRNGKey(12)))
training = Training(weights, optimizer.init(weights))
losses = []
for stars, inside in run.batches(hvd.batches(fields(run.rank))):
    training, loss = train(training, stars, inside)
    if run.is_faulty:
        training = agree(training)
    losses.append(loss)
if run.rank == 0:
    print(f"loss {float(losses[0]):.3f} to {float(losses[-1]):.3f}")
run.close()
