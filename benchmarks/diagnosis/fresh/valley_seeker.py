"""A controller for a boat on a river, with JAX, by an evolution strategy: no gradients, no optimizer of the library.

Each rank sails with 512 boats whose controllers have been changed at random, and the changes, weighted by how far each boat came,
are averaged over the ranks within the compiled step.  Nothing is wrong.
"""

from typing import Any

import frameworks_run
import jax
import jax.numpy as jnp
import numpy as np
import optax

import tlkit.runtime.jax as hvd

BOATS, TICKS, HIDDEN, SPREAD, DT = 512, 150, 24, 0.08, 0.1


def steer(controller: dict[str, Any], seen: Any) -> Any:
    """The angle of the rudder."""
    hidden = jnp.tanh(controller["in"] @ seen + controller["bias"])
    return jnp.tanh(controller["out"] @ hidden)


def sail(controller: dict[str, Any], gusts: Any) -> Any:
    """How far a boat comes against the river, which is slower near the banks, where it is shallow."""

    def tick(boat: Any, gust: Any) -> tuple[Any, Any]:
        place, heading = boat[:2], boat[2]
        heading = heading + DT * (2 * steer(controller, jnp.append(boat, gust)) + gust)
        stream = 1.2 * (1 - place[1] ** 2)
        speed = jnp.where(jnp.abs(place[1]) < 0.95, 1.0, 0.2)
        place = place + DT * (speed * jnp.stack([jnp.cos(heading), jnp.sin(heading)]) - jnp.stack([stream, 0.0]))
        return jnp.append(jnp.clip(place, -50, 50), heading), None

    boat, _ = jax.lax.scan(tick, jnp.zeros(3), gusts)
    return boat[0]


run = frameworks_run.Run(hvd)
keys = jax.random.split(jax.random.PRNGKey(0), 2)
controller = hvd.broadcast_parameters(
    {
        "in": jax.random.normal(keys[0], (HIDDEN, 4)) * 0.3,
        "bias": jnp.zeros(HIDDEN),
        "out": jax.random.normal(keys[1], (HIDDEN,)) * 0.2,
    }
)
optimizer = optax.adam(0.02)
state = optimizer.init(controller)


@jax.jit
def generation(controller: Any, state: Any, key: Any) -> Any:
    """All boats sail, each change with its opposite, and the controller moves towards the better ones."""
    leaves, structure = jax.tree.flatten(controller)
    keys = jax.random.split(key, len(leaves) + 1)
    noise = structure.unflatten(
        [jax.random.normal(k, (BOATS // 2, *leaf.shape)) for k, leaf in zip(keys[1:], leaves, strict=True)]
    )
    changes = jax.tree.map(lambda n: jnp.concatenate([n, -n]), noise)
    boats = jax.tree.map(lambda leaf, change: leaf + SPREAD * change, controller, changes)
    gusts = 0.5 * jax.random.normal(keys[0], (TICKS,))
    distance = jax.vmap(sail, (0, None))(boats, gusts)
    weight = jnp.argsort(jnp.argsort(distance)) / (BOATS - 1) - 0.5
    uphill = jax.tree.map(lambda change: -jnp.tensordot(weight, change, 1) / (BOATS * SPREAD), changes)
    uphill = hvd.allreduce(uphill, name="uphill")
    updates, state = optimizer.update(uphill, state)
    return optax.apply_updates(controller, updates), state, distance.mean()


means = []
for number in run.batches(range(10_000)):
    key = jax.random.fold_in(jax.random.PRNGKey(100 + run.rank), number)
    controller, state, mean = generation(controller, state, key)
    means.append(mean)
    if len(means) % 25 == 0 and run.rank == 0:
        print(f"generation {number + 1}: {np.mean(jax.device_get(means[-25:])):.2f} m")
run.close()
