"""Violins by their tones, JAX: loss and gradients are compiled, the update is not.

optax's AdamW is a chain of small operations on each of the parameters, each of which is dispatched by itself.  Without the fault
the update is compiled as well.
"""

from collections.abc import Iterator
from typing import Any

import frameworks_run
import jax
import jax.numpy as jnp
import numpy as np
import optax

import tlkit.runtime.jax as hvd

PARTIALS, WIDTH, DEPTH, BATCH, VIOLINS = 96, 160, 8, 192, 24

Tree = Any


def tones(seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Strengths of partials: a body's resonances, and how it is bowed."""
    dice = np.random.default_rng(seed)
    bodies = np.random.default_rng(0).gamma(1.0, 1.0, (VIOLINS, PARTIALS))
    while True:
        violins = dice.integers(VIOLINS, size=BATCH)
        bowed = np.exp(-np.arange(PARTIALS) * dice.uniform(0.01, 0.05, (BATCH, 1)))
        yield np.log1p(bodies[violins] * bowed * dice.gamma(20, 0.05, bowed.shape)).astype("float32"), violins


def init(key: Any) -> Tree:
    """Gated residual layers."""
    keys = iter(jax.random.split(key, 2 * DEPTH + 2))

    def dense(inputs: int, outputs: int) -> Tree:
        return {
            "kernel": jax.random.normal(next(keys), (inputs, outputs)) / np.sqrt(inputs),
            "bias": jnp.zeros(outputs),
        }

    return {
        "into": dense(PARTIALS, WIDTH),
        "layers": [
            {"value": dense(WIDTH, WIDTH), "gate": dense(WIDTH, WIDTH), "scale": jnp.ones(WIDTH)} for _ in range(DEPTH)
        ],
        "out": dense(WIDTH, VIOLINS),
    }


def apply(parameters: Tree, tone: Any) -> Any:
    """Scores."""

    def dense(layer: Tree, x: Any) -> Any:
        return x @ layer["kernel"] + layer["bias"]

    x = dense(parameters["into"], tone)
    for layer in parameters["layers"]:
        y = layer["scale"] * x * jax.lax.rsqrt(jnp.square(x).mean(1, keepdims=True) + 1e-5)
        x = x + dense(layer["value"], y) * jax.nn.sigmoid(dense(layer["gate"], y))
    return dense(parameters["out"], x)


def loss_of(parameters: Tree, tone: Any, violins: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(apply(parameters, tone), violins).mean()


def main() -> None:
    """The training."""
    run = frameworks_run.Run(hvd)
    parameters = hvd.broadcast_parameters(init(jax.random.PRNGKey(7)))
    optimizer = hvd.DistributedOptimizer(optax.adamw(optax.cosine_decay_schedule(2e-3, 500), weight_decay=0.01))
    state = optimizer.init(parameters)
    gradients_of = jax.jit(jax.value_and_grad(loss_of))

    def update(gradients: Tree, state: Tree, parameters: Tree) -> tuple[Tree, Tree]:
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state

    @jax.jit
    def train(parameters: Tree, state: Tree, tone: Any, violins: Any) -> tuple[Tree, Tree, Any]:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, tone, violins)
        return *update(gradients, state, parameters), loss

    losses = []
    for tone, violins in run.batches(hvd.batches(tones(run.rank))):
        if run.is_faulty:
            loss, gradients = gradients_of(parameters, tone, violins)
            parameters, state = update(gradients, state, parameters)
        else:
            parameters, state, loss = train(parameters, state, tone, violins)
        losses.append(loss)
    if run.rank == 0:
        print(f"loss {float(losses[0]):.3f} to {float(losses[-1]):.3f}")
    run.close()


main()
