"""Heartbeats to kinds of arrhythmia, by dilated convolutions; every rank binds itself to a core, all of them to the same.

The core's number is read from SLURM_LOCALID, which is not there when Slurm has not started the ranks, so it is 0 for everyone.
Without the fault it is the local rank.
"""

import os

import torch
from ranks import Run
from torch import nn

KINDS, LEADS, SAMPLES, BATCH = 6, 4, 360, 16


class Block(nn.Module):
    """Two dilated convolutions around which the signal goes, too."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(width, width, 7, padding=3 * dilation, dilation=dilation)
        self.second = nn.Conv1d(width, width, 1)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.second(self.norm(self.first(x)).relu())
        return out


def bind(run: Run) -> None:
    """Keep this rank's thread on a core of its own."""
    cores = sorted(os.sched_getaffinity(0))
    local = int(os.environ.get("SLURM_LOCALID", "0")) if run.is_faulty else int(run.hvd.local_rank())
    os.sched_setaffinity(0, {cores[local % len(cores)]})


run = Run()
bind(run)
network = nn.Sequential(
    nn.Conv1d(LEADS, 32, 9, stride=2, padding=4),
    *(Block(32, 2**depth) for depth in range(5)),
    nn.AdaptiveMaxPool1d(4),
    nn.Flatten(),
    nn.Linear(128, KINDS),
)
model, optimizer = run.wrap(network, torch.optim.AdamW(network.parameters(), lr=1e-3))
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=run.args.steps + 1)
beats = torch.Generator().manual_seed(50 + run.rank)
for _ in run.batches(range(10_000)):
    signal = torch.randn(BATCH, LEADS, SAMPLES, generator=beats).cumsum(2) / 20
    kinds = torch.randint(KINDS, (BATCH,), generator=beats)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(signal), kinds).backward()
    optimizer.step()
    scheduler.step()
run.close()
