"""Colours of glazes from recipes and firing curves, a mixer that torch.compile has compiled.

The first step takes seconds, since the compiler runs then, on both ranks alike, and never again.  Nothing is wrong.
"""

import torch
from ranks import Run
from torch import nn

OXIDES, HOURS, BATCH, WIDTH, DEPTH = 24, 48, 16, 96, 2


class Mix(nn.Module):
    """Along the hours, then along the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.hours = nn.Sequential(nn.Linear(HOURS, 2 * HOURS), nn.GELU(), nn.Linear(2 * HOURS, HOURS))
        self.channels = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.hours(self.before(x).transpose(1, 2)).transpose(1, 2)
        out: torch.Tensor = x + self.channels(self.between(x))
        return out


class Glaze(nn.Module):
    """A recipe and a curve of temperatures in, a colour out."""

    def __init__(self) -> None:
        super().__init__()
        self.recipe, self.heat = nn.Linear(OXIDES, WIDTH), nn.Linear(1, WIDTH)
        self.mixes = nn.Sequential(*(Mix() for _ in range(DEPTH)))
        self.colour = nn.Linear(WIDTH, 3)

    def forward(self, oxides: torch.Tensor, curve: torch.Tensor) -> torch.Tensor:
        x = self.heat(curve.unsqueeze(2)) + self.recipe(oxides).unsqueeze(1)
        colour: torch.Tensor = self.colour(self.mixes(x).mean(1)).sigmoid()
        return colour


def fire(dice: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Recipes, curves and what came out of the kiln."""
    oxides = torch.rand(BATCH, OXIDES, generator=dice).softmax(1)
    peak = torch.rand(BATCH, 1, generator=dice) * 10 + 20
    curve = 1.2 - ((torch.arange(HOURS) - peak) / 30).square()
    colour = (oxides[:, :3] * 12 + curve.amax(1, keepdim=True) - 1).clamp(0, 1)
    return oxides, curve, colour


def main() -> None:
    """The training."""
    run = Run()
    glaze = Glaze()
    model, optimizer = run.wrap(glaze, torch.optim.AdamW(glaze.parameters(), lr=1e-3))
    compiled = torch.compile(model, dynamic=False)
    dice = torch.Generator().manual_seed(run.rank)
    for _ in run.batches(range(10_000)):
        oxides, curve, colour = fire(dice)
        optimizer.zero_grad()
        nn.functional.mse_loss(compiled(oxides, curve), colour).backward()
        optimizer.step()
    run.close()


main()
