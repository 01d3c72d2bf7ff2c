"""Where a town's water mains leak, from pressures at their junctions: a graph network, with evaluation and a checkpoint.

The graph is small, so messages are a product with its dense adjacency. Every 25th step the network is evaluated on a week
that was held out, and the mean error of the ranks decides whether the learning rate is halved; rank 0 saves the network at
the end. Nothing is wrong.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from ranks import Run
from torch import nn

JUNCTIONS, SENSED, WIDTH, BATCH, DEPTH, EVERY = 112, 5, 48, 20, 5, 25

Week = tuple[torch.Tensor, torch.Tensor]


def town() -> torch.Tensor:
    """The adjacency of a town's mains, normalised: a ring road and shortcuts."""
    dice = torch.Generator().manual_seed(11)
    adjacency = torch.eye(JUNCTIONS)
    ring = torch.arange(JUNCTIONS)
    adjacency[ring, (ring + 1) % JUNCTIONS] = 1
    adjacency[ring, torch.randint(JUNCTIONS, (JUNCTIONS,), generator=dice)] = 1
    adjacency = torch.maximum(adjacency, adjacency.T)
    degree = adjacency.sum(1).rsqrt()
    return degree[:, None] * adjacency * degree


class Messages(nn.Module):
    """What neighbours tell."""

    def __init__(self, mains: torch.Tensor) -> None:
        super().__init__()
        self.mains = mains
        self.own, self.theirs = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, nodes: torch.Tensor) -> torch.Tensor:
        told = self.own(nodes) + self.theirs(self.mains @ nodes)
        out: torch.Tensor = nodes + self.norm(told).relu()
        return out


class Leaks(nn.Module):
    """Pressures in, a score of each junction out."""

    def __init__(self) -> None:
        super().__init__()
        mains = town()
        self.enter = nn.Linear(SENSED, WIDTH)
        self.body = nn.Sequential(*(Messages(mains) for _ in range(DEPTH)))
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, pressures: torch.Tensor) -> torch.Tensor:
        score: torch.Tensor = self.score(self.body(self.enter(pressures))).squeeze(2)
        return score


def make_week(count: int, seed: int) -> Week:
    """Pressures, lower near the leak."""
    dice = torch.Generator().manual_seed(seed)
    leaks = torch.randint(JUNCTIONS, (count,), generator=dice)
    pressures = torch.randn(count, JUNCTIONS, SENSED, generator=dice)
    return pressures - 2 * town()[leaks][:, :, None], leaks


@torch.inference_mode()
def evaluate(hvd: Any, model: nn.Module, week: Week) -> float:
    """The mean loss over the held-out weeks of all ranks."""
    model.eval()
    pressures, leaks = week
    loss = nn.functional.cross_entropy(model(pressures), leaks)
    model.train()
    return float(hvd.allreduce(loss, name="evaluation"))


def main() -> None:
    """Train."""
    run = Run()
    network = Leaks()
    model, optimizer = run.wrap(network, torch.optim.AdamW(network.parameters(), lr=2e-3, fused=True))
    patience = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    held_out = make_week(2 * BATCH, 500 + run.rank)
    pressures, leaks = make_week(30 * BATCH, run.rank)
    errors: list[float] = []
    for batch, truth in run.batches(list(zip(pressures.split(BATCH), leaks.split(BATCH), strict=True))):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), truth).backward()
        optimizer.step()
        if run.step % EVERY == 0:
            errors.append(evaluate(run.hvd, network, held_out))
            patience.step(errors[-1])
    if run.rank == 0:
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"model": network.state_dict(), "errors": errors}, Path(folder) / "leaks.pt")
    run.close()


main()
