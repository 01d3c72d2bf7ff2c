"""Whether the wait for communication counts as such, and a slow device as the straggler."""

from pathlib import Path
from typing import Any

from tests.integration.ranks import finish_ranks, start_ranks
from tlkit.collector import analyze

_SLEEP_MS = 30

_HOOKED = """
import tlkit
hooked, folder = {hooked}, {folder!r}
one_rank()
cycles = cycles_of({sleep_ms})
recording = tlkit.instrument(folder + "/t.json")
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(4)]).cuda()
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0], bucket_cap_mb=1000)
side = torch.cuda.Stream()

def hook(_, bucket):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(cycles)
        future = torch.futures.Future(devices=[torch.device("cuda", 0)])
        future.set_result(bucket.buffer())
    return future

if hooked:
    model.register_comm_hook(None, hook)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.randn(2048, 2048, device="cuda")
for _ in range(40):
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
    torch.cuda.synchronize()
recording.stop()
answer(True)
dist.destroy_process_group()
"""


def test_what_a_stream_waits_for_is_exposed(script: Any, note: Any, tmp_path: Path) -> None:
    """A communication hook sleeps on a side stream: steps become so much longer, and the model's own work does not."""
    means = {}
    for hooked in (False, True):
        folder = tmp_path / str(hooked)
        folder.mkdir()
        script(_HOOKED.format(hooked=hooked, folder=str(folder), sleep_ms=_SLEEP_MS))
        facts = analyze(folder / "t.json").facts
        own_ms = sum(float(facts.part(part).mean()) for part in ("forward", "backward", "optimizer")) / 1e6
        means[hooked] = facts.mean_step_ns / 1e6, own_ms
    longer_ms, more_work_ms = (means[True][place] - means[False][place] for place in (0, 1))
    note(
        "exposure",
        asked_ms=_SLEEP_MS,
        step_longer_by_ms=round(longer_ms, 2),
        own_work_longer_by_ms=round(more_work_ms, 2),
    )

    assert abs(longer_ms - _SLEEP_MS) < 0.1 * _SLEEP_MS
    assert abs(more_work_ms) < 0.05 * _SLEEP_MS


_SLOW = """
torch.cuda.set_device(0)
hvd.init()
class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(512, 512).cuda()
    def forward(self, x):
        if hvd.rank() == 1:
            torch.cuda._sleep(60_000_000)
        return self.layer(x)
model = Slow()
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-3), model.named_parameters())
x = torch.randn(64, 512, device="cuda")
for _ in range(60):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
hvd.shutdown()
answer(True)
"""


def test_a_slow_device_is_the_straggler(note: Any, tmp_path: Path) -> None:
    """Two ranks on one GPU over Gloo; kernels of rank 1 alone take longer, its host does not."""
    settings = {"HOROVOD_TIMELINE": str(tmp_path / "t.json"), "HOROVOD_GPU_OPERATIONS": "gloo"}
    for result in finish_ranks(start_ranks(2, _SLOW, settings), 150):
        assert result.answer is True
    verdict = analyze(tmp_path / "t.json").verdict
    note(
        "verdicts",
        fault="rank 1's kernels take longer",
        class_=verdict.class_,
        cause=verdict.cause,
        ranks=str(verdict.ranks),
    )

    assert (verdict.class_, verdict.ranks) == ("straggler", (1,))
