"""Progressive resizing: images of 20 pixels first, of 28 in the second half, on all ranks alike, by a new loader.

Nothing is wrong.
"""

from collections.abc import Iterator
from typing import Any

import torch
from ranks import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BATCH = 20


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """64 pictures of a side in pixels, again and again."""

    def __init__(self, side: int, count: int) -> None:
        self.pictures = torch.randn(64, 3, side, side, generator=torch.Generator().manual_seed(side))
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.roll(self.pictures[index % 64], index % 5, 2), index % 10


def phases() -> Iterator[Any]:
    """Half of the steps with each size."""
    for side in (20, 28):
        pictures = Pictures(side, run.args.steps // 2 * BATCH * run.size)
        sampler: DistributedSampler[tuple[torch.Tensor, int]] = DistributedSampler(pictures, run.size, run.rank)
        yield from DataLoader(pictures, BATCH, sampler=sampler, num_workers=1, prefetch_factor=4)


run = Run()
layers: list[nn.Module] = [nn.Conv2d(3, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU()]
layers += [nn.Conv2d(24, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(), nn.MaxPool2d(2)]
layers += [nn.Conv2d(48, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
optimizer: Any
model, optimizer = run.wrap(nn.Sequential(*layers, nn.Linear(256, 10)))
for images, labels in run.batches(phases()):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.synchronize()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    with optimizer.skip_synchronize():
        optimizer.step()
run.close()
