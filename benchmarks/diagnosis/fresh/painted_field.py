"""A picture as a network of sines, fitted by L-BFGS with a line search, each rank with half of the pixels.

Forward and backward run inside optimizer.step(), as often as the search demands, two to five times; the loss is averaged over the
ranks, so that all of them search alike.  Nothing is wrong.
"""

import math
from typing import Any

import torch
from ranks import Run
from torch import distributed, nn

SIDE, WIDTH = 56, 64


class Sines(nn.Module):
    """A layer that oscillates."""

    def __init__(self, inputs: int, outputs: int, frequency: float) -> None:
        super().__init__()
        self.frequency, self.linear = frequency, nn.Linear(inputs, outputs)
        bound = 1 / inputs if inputs == 2 else math.sqrt(6 / inputs) / frequency
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.sin(self.frequency * self.linear(x))
        return out


def picture() -> tuple[torch.Tensor, torch.Tensor]:
    """Where the pixels are, and their colours."""
    ticks = torch.linspace(-1, 1, SIDE)
    where = torch.cartesian_prod(ticks, ticks)
    rings = torch.sin(14 * where.norm(dim=1, keepdim=True) + 3 * where[:, :1])
    return where, torch.cat([rings, rings.square(), where[:, 1:] * rings], 1)


run = Run()
network = nn.Sequential(
    Sines(2, WIDTH, 20.0), Sines(WIDTH, WIDTH, 20.0), Sines(WIDTH, WIDTH, 20.0), nn.Linear(WIDTH, 3)
)
lbfgs = torch.optim.LBFGS(network.parameters(), max_iter=2, max_eval=5, history_size=12, line_search_fn="strong_wolfe")
wrapped: tuple[nn.Module, Any] = run.wrap(network, lbfgs)
model, optimizer = wrapped
where, colours = picture()
where, colours = where[run.rank :: run.size], colours[run.rank :: run.size]


def evaluate() -> torch.Tensor:
    """The loss of all ranks, and its gradient."""
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(where), colours)
    loss.backward()
    mean = loss.detach().clone()
    distributed.all_reduce(mean)
    return mean / run.size


for _ in run.batches(range(10_000)):
    optimizer.step(evaluate)
run.close()
