"""Grades of retinopathy from fundus photos, validated after every twelfth batch, photo by photo.

The DataLoader of the validation was given no batch size, so it is 1.  Without the fault it is 32.
"""

from collections.abc import Iterable

import torch
from ranks import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

GRADES, BATCH, SIDE, VALIDATION, EVERY = 5, 16, 40, 64, 12


class Separable(nn.Module):
    """Depthwise and pointwise, with a gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth, self.point = nn.Conv2d(width, width, 5, padding=2, groups=width), nn.Conv2d(width, width, 1)
        self.norm, self.gate = nn.BatchNorm2d(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.point(self.depth(x))).relu()
        out: torch.Tensor = x + y * self.gate(y.mean((2, 3))).sigmoid()[:, :, None, None]
        return out


@torch.no_grad()
def validate(network: nn.Module, batches: Iterable[list[torch.Tensor]]) -> float:
    """The share of right grades."""
    network.eval()
    right = total = 0
    for photos, grades in batches:
        right += int((network(photos).argmax(1) == grades).sum())
        total += len(grades)
    network.train()
    return right / total


def photos(count: int, seed: int) -> TensorDataset:
    """Photos and their grades."""
    dice = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(count, 3, SIDE, SIDE, generator=dice), torch.randint(GRADES, (count,), generator=dice)
    )


def main() -> None:
    """The training."""
    run = Run()
    network = nn.Sequential(
        nn.Conv2d(3, 24, 4, stride=2, padding=1),
        *(Separable(24) for _ in range(3)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, GRADES),
    )
    model, optimizer = run.wrap(network, torch.optim.RMSprop(network.parameters(), lr=1e-3))
    loader = DataLoader(photos(480, run.rank), BATCH, shuffle=True)
    held_out = photos(VALIDATION, 100 + run.rank)
    validation = DataLoader(held_out) if run.is_faulty else DataLoader(held_out, 32)
    best = 0.0
    for batch, grades in run.batches(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), grades).backward()
        optimizer.step()
        if run.step % EVERY == 0:
            best = max(best, validate(network, validation))
    run.close()


main()
