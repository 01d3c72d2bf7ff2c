"""Trains a small network with JAX on several ranks: `HOROVOD_TIMELINE=t.json tl-run -np 2 python samples/train_jax.py`."""

import argparse
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import tlkit.runtime.jax as hvd


def make_batches(steps: int, size: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Points, and whether each lies inside of a sphere."""
    dice = np.random.default_rng(seed)
    for _ in range(steps):
        points = dice.normal(size=(size, 16)).astype(np.float32)
        yield points, (np.square(points).sum(axis=1) < 15).astype(np.float32)


def make_parameters(key: Any) -> dict[str, Any]:
    """Two layers."""
    first, second = jax.random.split(key)
    return {
        "hidden": {"kernel": jax.random.normal(first, (16, 256)) * 0.25, "bias": jnp.zeros(256)},
        "output": jax.random.normal(second, (256,)) * 0.06,
    }


def loss_of(parameters: dict[str, Any], points: Any, labels: Any) -> Any:
    """Binary cross entropy."""
    hidden = jax.nn.relu(points @ parameters["hidden"]["kernel"] + parameters["hidden"]["bias"])
    return optax.sigmoid_binary_cross_entropy(hidden @ parameters["output"], labels).mean()


def main() -> None:
    """Train, and print the loss now and then."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64, help="of one rank")
    options = parser.parse_args()

    hvd.init()
    parameters = hvd.broadcast_parameters(make_parameters(jax.random.PRNGKey(hvd.rank())))
    optimizer = hvd.DistributedOptimizer(optax.adam(1e-3 * hvd.size()))
    state = optimizer.init(parameters)

    @jax.jit
    def train(parameters: Any, state: Any, points: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, points, labels)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, loss

    for step, (points, labels) in enumerate(hvd.batches(make_batches(options.steps, options.batch, hvd.rank()))):
        parameters, state, loss = train(parameters, state, points, labels)
        if hvd.rank() == 0 and step % 20 == 0:
            print(f"step {step}: loss {float(loss):.3f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
