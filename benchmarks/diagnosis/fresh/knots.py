"""Knots from the crossings along a string, by a recurrent network whose weights stay orthogonal (a parametrization of torch's).

The parametrization makes the matrix anew, by a matrix exponential, whenever the weight is read, which is at each crossing.
Without the fault it is made once a step (parametrize.cached).
"""

import contextlib

import torch
from ranks import Run
from torch import nn
from torch.nn.utils import parametrizations, parametrize

CROSSINGS, LENGTH, BATCH, WIDTH, KNOTS = 24, 20, 160, 64, 9


class Cell(nn.Module):
    """A step along the string."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Linear(WIDTH, WIDTH)
        self.kept = parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, seen: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return nn.functional.elu(self.seen(seen) + self.kept(state))


class String(nn.Module):
    """Crossings in, the scores of the knots out."""

    def __init__(self) -> None:
        super().__init__()
        self.crossings = nn.Embedding(CROSSINGS, WIDTH)
        self.cell = Cell()
        self.knot = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, KNOTS))

    def forward(self, crossings: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(len(crossings), WIDTH)
        for seen in self.crossings(crossings).unbind(1):
            state = self.cell(seen, state)
        scores: torch.Tensor = self.knot(state)
        return scores


run = Run()
string = String()
model, optimizer = run.wrap(string, torch.optim.RMSprop(string.parameters(), lr=5e-4))
dice = torch.Generator().manual_seed(run.rank)
for _ in run.batches(range(10_000)):
    crossings = torch.randint(CROSSINGS, (BATCH, LENGTH), generator=dice)
    knots = crossings[:, ::5].sum(1) % KNOTS
    optimizer.zero_grad()
    with contextlib.nullcontext() if run.is_faulty else parametrize.cached():
        nn.functional.cross_entropy(model(crossings), knots).backward()
    optimizer.step()
run.close()
