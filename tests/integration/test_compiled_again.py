"""TorchDynamo compiles for each new shape: on real ranks, by torch.compile before and after the recording began."""

from pathlib import Path

import numpy as np
import pytest

from tlkit.collector import analyze
from tlkit.timeline import open_trace
from tlkit.timeline.vocabulary import COMPILATION

from .ranks import run_ranks

_TRAINING = """
import tlkit.runtime.torch as hvd

model = torch.nn.Sequential(torch.nn.Embedding(100, 16), torch.nn.Linear(16, 100))
if os.environ["LOADED"] == "before":
    import torch._dynamo
hvd.init()
torch._dynamo.config.recompile_limit = 100
compiled = torch.compile(model, backend="eager", dynamic=False)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
for step in range(24):
    words = torch.randint(0, 100, (4, 8 + step // 3 if step >= 9 else 8))
    optimizer.zero_grad()
    compiled(words).square().mean().backward()
    optimizer.step()
torch._dynamo.reset()
compiled(torch.randint(0, 100, (4, 50)))
hvd.shutdown()
"""


@pytest.mark.parametrize("loaded", ["before", "after"])
def test_a_model_that_is_compiled_for_each_shape_is_named(loaded: str, tmp_path: Path) -> None:
    """Every third step has a new length; also after everything that was compiled is forgotten."""
    run_ranks(2, _TRAINING, {"HOROVOD_TIMELINE": f"{tmp_path}/t.json", "LOADED": loaded})
    trace = open_trace(tmp_path / "t.json")
    spans = trace.spans[trace.spans["name"] == COMPILATION]
    steps = trace.steps[trace.steps["rank"] == 0]
    mine = spans[spans["rank"] == 0]
    starts, begun = steps["start_ns"].to_numpy(), mine["start_ns"].to_numpy()
    in_steps = set(steps["step"].to_numpy()[np.searchsorted(starts, begun[begun < steps["end_ns"].max()], "right") - 1])
    assert {9, 12, 15, 18, 21} <= in_steps
    assert not in_steps & {10, 11, 13, 14, 16, 17, 19, 20, 22}
    assert (mine["start_ns"] > steps["end_ns"].max()).any()
    again = [finding for finding in analyze(trace, warm_up=4).findings if finding.cause == "compiled-again"]
    assert again
    assert "torch.compile(dynamic=True)" in again[0].remedy
