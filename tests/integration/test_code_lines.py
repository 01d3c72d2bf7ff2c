"""Which line of a script makes its steps slow: recorded, and named in the report."""

import textwrap
from pathlib import Path

import pytest

from tlkit.collector import analyze
from tlkit.collector.reports.summary import summarize

from .ranks import run_script

SCRIPT = """
import json, sys, time
import torch
import horovod.torch as hvd

FAULT = sys.argv[1]


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, number):
        parsed = parse(300)
        return torch.randn(64) + len(parsed)


def parse(count):
    return [json.loads('{"row": [1, 2, 3, 4]}') for _ in range(count)]  # again and again


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])

    def forward(self, rows):
        if FAULT == "masked":
            mask = torch.ones(64, 64)
            for row in range(64):
                for column in range(row):
                    mask[row, column] = 0  # by hand
            rows = rows @ mask
        return self.layers(rows)


def clip(gradient):
    for _ in range(200):
        gradient = gradient * (1 / gradient.norm().clamp(min=1))
    return gradient


def log_slowly():
    time.sleep(0.05)  # as to a disk


hvd.init()
torch.manual_seed(0)
net = Net()
if FAULT == "hooked":
    for parameter in net.parameters():
        parameter.register_hook(clip)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.001), net.named_parameters())
rows = iter(torch.utils.data.DataLoader(Rows(), batch_size=8, num_workers=1)) if FAULT == "loaded" else None
for step in range(60 if FAULT == "logged" else 300):
    optimizer.zero_grad()
    net(torch.randn(8, 64) if rows is None else next(rows)).sum().backward()
    optimizer.step()
    if FAULT == "logged" and hvd.rank() == 1:
        log_slowly()
hvd.shutdown()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A training script of somebody's, outside of this project."""
    path = tmp_path / "train_net.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


def line_of(text: str) -> int:
    """Of the script, from 1."""
    return next(number for number, line in enumerate(SCRIPT.splitlines(), start=1) if text in line)


def recorded(script: Path, fault: str) -> str:
    """A timeline of two ranks."""
    path = str(script.parent / "t.json")
    run_script(2, script, [fault], {"HOROVOD_TIMELINE": path})
    return path


def test_hooks_of_gradients_are_named(script: Path) -> None:
    """By the function that autograd calls back."""
    found = {finding.cause: finding for finding in analyze(recorded(script, "hooked")).findings}

    assert "clip() in train_net.py" in found["code-in-backward"].sentence
    assert found["code-in-backward"].predicted_gain > 0.3


def test_the_slow_ranks_line_is_named(script: Path) -> None:
    """With its text, in the sentence of the finding."""
    (slow,) = (one for one in analyze(recorded(script, "logged")).findings if one.cause == "slow-host-code")

    assert slow.ranks == (1,)
    assert f"at train_net.py:{line_of('as to a disk')}, in log_slowly(): time.sleep(0.05)" in slow.sentence


def test_loops_of_python_in_forward_are_named(script: Path) -> None:
    """With how often the line runs; it is in the table of lines, too."""
    analysis = analyze(recorded(script, "masked"))
    found = {finding.cause: finding for finding in analysis.findings}
    lines = [(row.line, row.function, row.part, row.times) for row in summarize(analysis).code[:3]]

    assert f"train_net.py:{line_of('by hand')}, in forward(), 2,016 times a step" in found["python-loop"].sentence
    assert found["python-loop"].predicted_gain > 0.1
    assert (f"train_net.py:{line_of('by hand')}", "forward()", "forward", "2,016") in lines


def test_the_line_of_slow_workers_is_named(script: Path) -> None:
    """In processes of their own, of the dataset or what it calls."""
    found = {finding.cause: finding for finding in analyze(recorded(script, "loaded")).findings}

    assert f"at train_net.py:{line_of('again and again')}" in found["slow-loader"].sentence
