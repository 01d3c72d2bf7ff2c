"""Models that are called once more for the accuracy, losses that go backward one by one, or that have no weight."""

from pathlib import Path

import pytest

from tlkit.collector import analyze

from .ranks import run_ranks

_SCRIPT = """
hvd.init()
torch.manual_seed(hvd.rank())
trunk = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)])
heads = torch.nn.ModuleList(torch.nn.Linear(512, 1) for _ in range(3))
decoder = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
model = torch.nn.ModuleList([trunk, heads, decoder])
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.001), named_parameters=model.named_parameters())
what = os.environ["WHAT"]
for step in range(40):
    x = torch.randn(64, 512)
    optimizer.zero_grad()
    known = trunk(x)
    losses = [head(known).square().mean() for head in heads]
    if what == "backward-again":
        for loss in losses:
            torch.autograd.grad(loss, list(trunk.parameters()), retain_graph=True)
    weight = 0.0 if what == "zero-gradients" else 1.0
    (losses[0] + losses[1] + losses[2] + weight * decoder(known).square().mean()).backward()
    if what == "computed-again":
        with torch.no_grad():
            for head in heads:
                head(trunk(x))
    optimizer.step()
hvd.shutdown()
"""

_DETAILS = {"computed-again": "Sequential, 4 times", "backward-again": "4 passes", "zero-gradients": "Sequential"}


@pytest.mark.parametrize("what", ["computed-again", "backward-again", "zero-gradients", "nothing"])
def test_what_a_step_computes_again_is_told(tmp_path: Path, what: str) -> None:
    """And not where it does not."""
    run_ranks(2, _SCRIPT, {"HOROVOD_TIMELINE": f"{tmp_path}/t.json", "WHAT": what})
    analysis = analyze(tmp_path / "t.json")
    found = {one.cause: one for one in analysis.findings if one.cause in _DETAILS}

    assert set(found) == {what} - {"nothing"}
    if found:
        assert found[what].evidence["most"] == _DETAILS[what]
        assert found[what].predicted_gain > 0
