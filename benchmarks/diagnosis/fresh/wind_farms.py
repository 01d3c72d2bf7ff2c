"""The power of a wind farm in an hour, from its turbines: a transformer over turbines.

The last rank also answers for the operator's log: when an export has come in, which is after a third of the training, a
background thread parses it, in Python, for some seconds, and takes the interpreter's lock from the training thread. Without
the fault nothing is parsed while training.
"""

import json
import threading
from collections import Counter

import torch
from ranks import Run
from torch import nn

TURBINES, SENSED, BATCH, WIDTH, DEPTH = 40, 12, 14, 80, 3
LINES_A_STEP = 2600


class Power(nn.Module):
    """What turbines sense in, megawatts out."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(SENSED, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 3 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.power = nn.Linear(WIDTH, 1)

    def forward(self, sensed: torch.Tensor) -> torch.Tensor:
        power: torch.Tensor = self.power(self.body(self.enter(sensed))).sum((1, 2))
        return power


def export(count: int) -> list[str]:
    """The operator's log, a JSON object a line."""
    return [
        json.dumps({"turbine": f"WT{number % TURBINES:03}", "code": number * 7 % 31, "text": f"yaw={number % 360};ok"})
        for number in range(count)
    ]


class LogDigest:
    """How often which turbine said what."""

    def __init__(self, lines: list[str], total: int) -> None:
        self.lines, self.total = lines, total
        self.codes: Counter[tuple[str, int]] = Counter()
        self.yaws: dict[str, float] = {}
        self.thread = threading.Thread(target=self.parse, name="log-digest", daemon=True)

    def parse(self) -> None:
        """All of it."""
        for number in range(self.total):
            entry = json.loads(self.lines[number % len(self.lines)])
            turbine = entry["turbine"]
            self.codes[turbine, entry["code"]] += 1
            fields = dict(field.split("=") for field in entry["text"].split(";") if "=" in field)
            self.yaws[turbine] = 0.99 * self.yaws.get(turbine, 0.0) + 0.01 * float(fields["yaw"])


def main() -> None:
    """Train."""
    run = Run()
    network = Power()
    model, optimizer = run.wrap(network, torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True))
    digest = None
    if run.is_faulty and run.rank == run.size - 1:
        digest = LogDigest(export(5000), LINES_A_STEP * run.args.steps)
    dice = torch.Generator().manual_seed(run.rank)
    sensed = torch.randn(24, BATCH, TURBINES, SENSED, generator=dice)
    power = sensed[..., :3].square().sum((2, 3))
    for turbines, truth in run.batches(list(zip(sensed, power, strict=True))):
        if digest is not None and run.step == run.args.steps // 3:
            digest.thread.start()
        optimizer.zero_grad()
        loss = nn.functional.huber_loss(model(turbines), truth)
        loss.backward()
        optimizer.step()
    if digest is not None:
        digest.thread.join()
    run.close()


main()
