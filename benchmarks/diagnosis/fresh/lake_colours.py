"""Algae in lakes from the colour of their water, with JAX: activations are watched with jax.debug.callback.

Each layer's are sorted into a histogram on the host in every step, and the compiled program waits for it.  Without the fault only
each layer's mean and spread are computed, in the program.
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

import frameworks_run
import jax
import jax.numpy as jnp
import numpy as np
import optax

import tlkit.runtime.jax as hvd

COLOURS, WIDTH, DEPTH, BATCH = 32, 160, 5, 448
EDGES = np.linspace(-4, 4, 65)

watched: dict[str, list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)


def keep_histogram(name: str, activations: Any) -> None:
    """How many activations are in each bin, and what a share of them lies below."""
    values = np.asarray(activations)
    counts, _ = np.histogram(values, EDGES)
    watched[name].append((counts, np.percentile(values, [1, 25, 50, 75, 99])))


def water(seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Reflected light at 32 wavelengths, and two concentrations."""
    dice = np.random.default_rng(seed)
    wave = np.linspace(0, 1, COLOURS, dtype=np.float32)
    while True:
        amounts = dice.gamma(2, 0.5, (BATCH, 2)).astype(np.float32)
        absorbed = amounts[:, :1] * np.exp(-np.square(wave - 0.6) * 80) + amounts[:, 1:] * np.exp(-3 * wave)
        yield np.exp(-absorbed) + dice.normal(0, 0.01, absorbed.shape).astype(np.float32), amounts


def make_parameters(key: Any) -> list[dict[str, Any]]:
    """Layers one after another."""
    sizes = [COLOURS, *[WIDTH] * DEPTH, 2]
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"kernel": jax.random.normal(k, (i, o)) * np.sqrt(1.5 / i), "bias": jnp.zeros(o)}
        for k, i, o in zip(keys, sizes, sizes[1:], strict=False)
    ]


run = frameworks_run.Run(hvd)


def forward(parameters: list[dict[str, Any]], light: Any) -> tuple[Any, list[Any]]:
    """Concentrations, and what is known of the layers."""
    x, known = light, []
    for number, layer in enumerate(parameters[:-1]):
        x = jax.nn.silu(x @ layer["kernel"] + layer["bias"])
        if run.is_faulty:
            jax.debug.callback(partial(keep_histogram, f"layer{number}"), x)
        else:
            known.append(jnp.stack([x.mean(), x.std()]))
    return x @ parameters[-1]["kernel"] + parameters[-1]["bias"], known


def loss_of(parameters: list[dict[str, Any]], light: Any, amounts: Any) -> tuple[Any, list[Any]]:
    """The squared error of logarithms."""
    found, known = forward(parameters, light)
    return jnp.square(found - jnp.log1p(amounts)).mean(), known


parameters = hvd.broadcast_parameters(make_parameters(jax.random.PRNGKey(1)))
optimizer = optax.chain(optax.clip_by_global_norm(1.0), hvd.DistributedOptimizer(optax.adamw(1e-3)))
state = optimizer.init(parameters)


@jax.jit
def train(parameters: Any, state: Any, light: Any, amounts: Any) -> Any:
    """One update."""
    (loss, known), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters, light, amounts)
    updates, state = optimizer.update(gradients, state, parameters)
    return optax.apply_updates(parameters, updates), state, loss, known


losses = []
for light, amounts in run.batches(hvd.batches(water(run.rank))):
    parameters, state, loss, known = train(parameters, state, light, amounts)
    losses.append(loss)
if run.rank == 0:
    print(f"loss {float(losses[0]):.4f} to {np.mean(jax.device_get(losses[-10:])):.4f}")
run.close()
