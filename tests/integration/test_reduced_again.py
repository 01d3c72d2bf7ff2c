"""Gradients that are synchronized, clipped, and reduced once more by the step."""

from pathlib import Path

import pytest

from tlkit.collector import analyze

from .ranks import run_ranks

#: Of all gradients.
NBYTES = 6 * (512 * 512 + 512) * 4
_SCRIPT = """
import contextlib
hvd.init()
net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)])
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.01), named_parameters=net.named_parameters())
again = os.environ["AGAIN"] == "1"
for step in range(30):
    optimizer.zero_grad()
    net(torch.randn(8, 512)).sum().backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    with contextlib.nullcontext() if again else optimizer.skip_synchronize():
        optimizer.step()
hvd.shutdown()
"""


@pytest.mark.parametrize("again", [True, False])
def test_gradients_that_a_step_reduces_again_are_told(tmp_path: Path, *, again: bool) -> None:
    """Half of the bytes; not where the step is told to leave them."""
    run_ranks(2, _SCRIPT, {"HOROVOD_TIMELINE": f"{tmp_path}/t.json", "AGAIN": str(int(again))})
    analysis = analyze(tmp_path / "t.json")
    found = [one for one in analysis.findings if one.cause == "reduced-again"]

    assert bool(found) == again
    if again:
        assert found[0].evidence["bytes_again_per_step"] == pytest.approx(NBYTES, rel=0.1)
        assert "skip_synchronize" in found[0].remedy
