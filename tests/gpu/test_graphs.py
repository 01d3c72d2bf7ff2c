"""CUDA graphs while everything is recorded: no capture is disturbed, and replays are on the timeline."""

from pathlib import Path
from typing import Any

from tlkit.timeline import open_trace

_CAPTURES = """
import tlkit
recording = tlkit.instrument({folder!r} + "/t.json")
model = torch.nn.Linear(256, 256).cuda()
x = torch.randn(32, 256, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
wrong = 0
for number in range(200):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
        time.sleep(0.005)
    graph.replay()
    wrong += not torch.allclose(y, model(x), atol=1e-4)
    if number % 20 == 0:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
torch.cuda.synchronize()
recording.stop()
answer(wrong)
"""


def test_no_capture_is_disturbed(script: Any, note: Any, tmp_path: Path) -> None:
    """200 of them, longer together than several flushes."""
    wrong = script(_CAPTURES.format(folder=str(tmp_path)))
    spans = open_trace(tmp_path / "t.json").spans
    replays = int(((spans["name"] == "GRAPH_REPLAY") & (spans["lane_kind"] == "compute")).sum())
    note("graphs", what="captures", count=200, wrong=wrong, replays_recorded=replays)

    assert wrong == 0
    assert replays == 200


_TRAININGS = """
import tlkit
how, folder = {how!r}, {folder!r}

def train(how, steps=60):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    x = torch.randn(64, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    called = model
    if how == "make_graphed_callables":
        called = torch.cuda.make_graphed_callables(model, (x,))
    elif how == "reduce-overhead":
        called = torch.compile(model, mode="reduce-overhead")
    losses = []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=False)
        loss = called(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses

plain = train(how)
recording = tlkit.instrument(folder + "/t.json")
recorded = train(how)
recording.stop()
answer([plain, recorded])
"""


def test_graphed_trainings_go_the_same_way(script: Any, note: Any, tmp_path: Path) -> None:
    """With and without recording."""
    for how in ("make_graphed_callables", "reduce-overhead"):
        plain, recorded = script(_TRAININGS.format(how=how, folder=str(tmp_path)))
        wrong = sum(one != other for one, other in zip(plain, recorded, strict=True))
        note("graphs", what=how, count=len(plain), wrong=wrong, replays_recorded="")

        assert plain == recorded, how
