"""Letters of scripts that are hardly known, meta-learning (MAML) with JAX: each task takes four steps of its own, in a scan.

Gradients go through these steps, for twelve tasks at once.  After every fortieth update unknown scripts are tried, by a function
that was compiled before the loop.  Nothing is wrong.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import frameworks_run
import jax
import jax.numpy as jnp
import numpy as np
import optax

import tlkit.runtime.jax as hvd

SIDE, WAYS, SHOTS, TASKS, INNER, WIDTH = 12, 5, 3, 12, 4, 128


class Task(NamedTuple):
    """Letters to learn from and letters to recognise."""

    shown: np.ndarray
    asked: np.ndarray


def scripts(seed: int) -> Iterator[Task]:
    """A script has strokes of its own; writers differ."""
    dice = np.random.default_rng(seed)
    strokes = np.random.default_rng(1).normal(size=(40, SIDE * SIDE))
    while True:
        letters = dice.normal(size=(TASKS, WAYS, 40)) @ strokes / 6
        written = letters[:, None] + dice.normal(0, 0.5, (TASKS, 2 * SHOTS, WAYS, SIDE * SIDE))
        flat = written.astype("float32").reshape(TASKS, 2 * SHOTS * WAYS, -1)
        yield Task(flat[:, : SHOTS * WAYS], flat[:, SHOTS * WAYS :])


LABELS = jnp.tile(jnp.arange(WAYS), SHOTS)


def start(key: Any) -> dict[str, Any]:
    """A perceptron that is quick to learn, and how quick each layer is."""
    sizes = [SIDE * SIDE, WIDTH, WIDTH, WAYS]
    keys = jax.random.split(key, 3)
    layers = [
        {"kernel": jax.random.normal(k, (i, o)) * np.sqrt(2 / i), "bias": jnp.zeros(o)}
        for k, i, o in zip(keys, sizes, sizes[1:], strict=False)
    ]
    return {"layers": layers, "rates": jnp.full(3, 0.05)}


def loss_of(layers: list[dict[str, Any]], letters: Any) -> Any:
    x = letters
    for layer in layers[:-1]:
        x = jax.nn.relu(x @ layer["kernel"] + layer["bias"])
    scores = x @ layers[-1]["kernel"] + layers[-1]["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, LABELS).mean()


def adapt(parameters: dict[str, Any], task: Task) -> Any:
    """The loss after some steps on what was shown."""

    def inner(layers: list[dict[str, Any]], _: Any) -> tuple[list[dict[str, Any]], None]:
        slopes = jax.grad(loss_of)(layers, task.shown)
        moved = [
            jax.tree.map(lambda w, g, rate=rate: w - rate * g, layer, slope)
            for layer, slope, rate in zip(layers, slopes, parameters["rates"], strict=True)
        ]
        return moved, None

    layers, _ = jax.lax.scan(inner, parameters["layers"], None, length=INNER)
    return loss_of(layers, task.asked)


def meta_loss(parameters: dict[str, Any], tasks: Task) -> Any:
    return jax.vmap(adapt, in_axes=(None, 0))(parameters, tasks).mean()


def main() -> None:
    """The training."""
    run = frameworks_run.Run(hvd)
    parameters = hvd.broadcast_parameters(start(jax.random.PRNGKey(3)))
    optimizer = hvd.DistributedOptimizer(optax.chain(optax.clip(1.0), optax.adam(1e-3)))
    state = optimizer.init(parameters)
    unknown = next(scripts(1000))
    validate = jax.jit(meta_loss).lower(parameters, unknown).compile()

    @jax.jit
    def train(parameters: Any, state: Any, tasks: Task) -> Any:
        loss, gradients = jax.value_and_grad(meta_loss)(parameters, tasks)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, loss

    for tasks in run.batches(hvd.batches(scripts(run.rank))):
        parameters, state, loss = train(parameters, state, tasks)
        if run.step % 40 == 0:
            found = float(validate(parameters, unknown))
            if run.rank == 0:
                print(f"{run.step}: {float(loss):.3f}, unknown scripts {found:.3f}")
    run.close()


main()
