"""Where proteins are buried, with JAX: chains of many lengths, a batch is as long as its longest.

So the jitted step is compiled again for each length that it has not met, at other steps on each rank.  Without the fault all
batches are padded to one length.
"""

from collections.abc import Iterator
from typing import Any

import frameworks_run
import jax
import numpy as np
import optax

import tlkit.runtime.jax as hvd

ACIDS, WIDTH, BATCH, MAX_LENGTH = 21, 64, 32, 72


def chains(seed: int, *, pads_to_longest: bool) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Acids, whether each lies inside, and which places are real."""
    dice = np.random.default_rng(seed)
    while True:
        lengths = dice.gamma(16, 2.5, BATCH).astype(int).clip(12, MAX_LENGTH)
        width = int(lengths.max()) if pads_to_longest else MAX_LENGTH
        real = np.arange(width) < lengths[:, None]
        acids = np.where(real, dice.integers(1, ACIDS, (BATCH, width)), 0)
        inside = (acids + np.roll(acids, 3, axis=1)) % 5 < 2
        yield acids.astype(np.int32), inside.astype(np.float32), real.astype(np.float32)


def make_parameters(key: Any) -> dict[str, Any]:
    """Vectors of the acids, a convolution along the chain, a score."""
    keys = jax.random.split(key, 3)
    return {
        "acids": jax.random.normal(keys[0], (ACIDS, WIDTH)) * 0.5,
        "chain": jax.random.normal(keys[1], (7, WIDTH, WIDTH)) / 18,
        "score": jax.random.normal(keys[2], (WIDTH,)) / 7,
    }


def loss_of(parameters: dict[str, Any], acids: Any, inside: Any, real: Any) -> Any:
    """Cross entropy of the real places."""
    x = parameters["acids"][acids] * real[..., None]
    y = jax.lax.conv_general_dilated(x, parameters["chain"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    x = x + jax.nn.relu(y) * real[..., None]
    losses = optax.sigmoid_binary_cross_entropy(x @ parameters["score"], inside)
    return (losses * real).sum() / real.sum()


run = frameworks_run.Run(hvd)
parameters = hvd.broadcast_parameters(make_parameters(jax.random.PRNGKey(run.rank)))
optimizer = hvd.DistributedOptimizer(optax.sgd(0.5, momentum=0.9, nesterov=True))
state = optimizer.init(parameters)


@jax.jit
def train(parameters: Any, state: Any, acids: Any, inside: Any, real: Any) -> Any:
    """One update."""
    loss, gradients = jax.value_and_grad(loss_of)(parameters, acids, inside, real)
    updates, state = optimizer.update(gradients, state, parameters)
    return optax.apply_updates(parameters, updates), state, loss


losses = []
loader = chains(run.rank, pads_to_longest=run.is_faulty)
for acids, inside, real in run.batches(hvd.batches(loader)):
    parameters, state, loss = train(parameters, state, acids, inside, real)
    losses.append(loss)
    if run.rank == 0 and run.step % 30 == 0:
        print(f"step {run.step}: loss {np.mean(jax.device_get(losses[-30:])):.3f}")
run.close()
