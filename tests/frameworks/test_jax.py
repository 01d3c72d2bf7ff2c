"""JAX on the runtime: real ranks, against one process that has the whole batch."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tlkit.collector import analyze
from tlkit.timeline import open_trace

from ..integration.ranks import fork_ranks
from .nurseries import ENVIRONMENT, nursery_of

pytestmark = [pytest.mark.timeout(600)]

_TRAINING = """
import jax, jax.numpy as jnp, numpy as np, optax
import tlkit.runtime.jax as hvd

BATCH, STEPS = 8, 20

def loss_of(parameters, batch):
    hidden = jnp.tanh(batch @ parameters["first"]["kernel"] + parameters["first"]["bias"])
    return jnp.mean((hidden @ parameters["second"] - batch[:, :2]) ** 2)

def fresh(seed):
    key = jax.random.PRNGKey(seed)
    return {"first": {"kernel": jax.random.normal(key, (6, 5)), "bias": jnp.ones(5)}, "second": jax.random.normal(key, (5, 2))}

def data(step):
    return np.random.default_rng(step).normal(size=(BATCH, 6)).astype(np.float32)

def train(parameters, optimizer, share, compiled):
    state = optimizer.init(parameters)
    def step(parameters, state, batch):
        gradients = jax.grad(loss_of)(parameters, batch)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state
    step = jax.jit(step) if compiled else step
    for batch in hvd.batches(share(data(number)) for number in range(STEPS)):
        parameters, state = step(parameters, state, batch)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(parameters)]
"""


def answers(size: int, script: str, **environment: str) -> list[Any]:
    """What each rank answers."""
    ranks = fork_ranks(size, _TRAINING + script, ENVIRONMENT | environment, 480, nursery_of("jax"))
    return [rank.answer for rank in ranks]


@pytest.mark.parametrize("size", [2, 4])
def test_parameters_are_those_of_one_process_with_the_whole_batch(size: int) -> None:
    """After 20 steps of Adam, from the parameters of rank 0, on every rank, compiled and not."""
    script = """
hvd.init()
def share(batch):
    return batch[hvd.rank() * BATCH // hvd.size() : (hvd.rank() + 1) * BATCH // hvd.size()]
said = []
for compiled in (True, False):
    parameters = hvd.broadcast_parameters(fresh(hvd.rank()), root_rank=0)
    mine = train(parameters, hvd.DistributedOptimizer(optax.adam(1e-2)), share, compiled)
    whole = train(fresh(0), optax.adam(1e-2), lambda batch: batch, compiled)
    apart = max(float(np.abs(a - b).max()) for a, b in zip(mine, whole, strict=True))
    said.append([apart, float(np.abs(mine[-1] - np.asarray(fresh(0)["second"])).max())])
hvd.shutdown()
answer(said)
"""
    for said in answers(size, script):
        for apart, moved in said:
            assert apart < 1e-5
            assert moved > 1e-2


def test_trees_are_reduced_gathered_and_broadcast() -> None:
    """Every reduction, types, arrays without dimensions, empty trees, and what is refused."""
    script = """
hvd.init()
mine = hvd.rank() + 1.0
tree = {"a": jnp.full((2, 3), mine), "b": [jnp.float32(mine), jnp.arange(3) * (hvd.rank() + 1)]}
def told(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), tree)
said = [told(hvd.allreduce(tree, op, name=str(op))) for op in (hvd.Sum, hvd.Min, hvd.Max, hvd.Product)]
said.append(told(jax.jit(lambda tree: hvd.allreduce(tree, name="jit"))({"a": tree["a"], "c": jnp.bfloat16(mine)})))
said.append(str(hvd.allreduce({"h": jnp.ones(2, jnp.bfloat16)})["h"].dtype))
said.append(told(hvd.allgather({"g": jnp.full((hvd.rank() + 1, 1), mine)})))
said.append(told(hvd.broadcast([jnp.float32(mine)], root_rank=1)))
said.append(hvd.allreduce({}))
try:
    jax.jit(lambda leaf: hvd.broadcast(leaf))(jnp.ones(2))
except TypeError as error:
    said.append(str(error))
hvd.shutdown()
try:
    hvd.allreduce(jnp.ones(2))
except ValueError as error:
    said.append(str(error))
answer(said)
"""
    first, second = answers(2, script)
    assert first == second
    summed, least, most, product, compiled, dtype, gathered, sent, empty, refused, ended = first
    assert summed == {"a": [[3.0] * 3] * 2, "b": [3.0, [0, 3, 6]]}
    assert least == {"a": [[1.0] * 3] * 2, "b": [1.0, [0, 1, 2]]}
    assert most == {"a": [[2.0] * 3] * 2, "b": [2.0, [0, 2, 4]]}
    assert product == {"a": [[2.0] * 3] * 2, "b": [2.0, [0, 2, 8]]}
    assert compiled == {"a": [[1.5] * 3] * 2, "c": 1.5}
    assert dtype == "bfloat16"
    assert gathered == {"g": [[1.0], [2.0], [2.0]]}
    assert sent == [2.0]
    assert empty == {}
    assert "call it outside" in refused
    assert "init" in ended


def test_the_timeline_has_steps_parts_and_names(tmp_path: Path) -> None:
    """Waits for batches, forward and backward as one part, gradients by their places in the tree; and it says that it is JAX's."""
    script = """
hvd.init()
def share(batch):
    time.sleep(0.05)
    return batch
train(fresh(0), hvd.DistributedOptimizer(optax.sgd(1e-2)), share, True)
hvd.shutdown()
answer(1)
"""
    assert answers(2, script, HOROVOD_TIMELINE=str(tmp_path / "t.json")) == [1, 1]
    trace = open_trace(tmp_path / "t.json")
    assert trace.meta.framework == "jax"
    assert trace.steps.groupby("rank").size().tolist() == [20, 20]
    waits = trace.spans[trace.spans["name"] == "DATA_WAIT"]
    assert waits["dur_ns"].median() > 40e6
    assert (trace.spans["name"] == "FORWARD_AND_BACKWARD").sum() == 40
    named = {f"allreduce.gradient/{place}" for place in ("first/kernel", "first/bias", "second")}
    assert set(trace.tensors["name"]) == named
    assert set(trace.collectives["caller"]) == {"gradient"}
    loading = [finding for finding in analyze(trace).findings if finding.class_ == "data"]
    assert "jax.device_put" in loading[0].remedy


def test_without_jax_one_sentence_says_what_to_install() -> None:
    """Not the first import that fails."""
    code = (
        "import importlib.util as u\n"
        "found = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'jax' else found(name, *a)\n"
        "import tlkit.runtime.jax\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.stderr.strip().splitlines()[-1].endswith("not installed: pip install 'tlkit[jax]'")
