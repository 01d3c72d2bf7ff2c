"""Rare species in camera traps: a WeightedRandomSampler draws an index for each of 500,000 photos whenever an epoch begins.

But what is called an epoch here is twelve batches.  Without the fault the sampler draws as many as that takes (num_samples).
"""

from collections.abc import Iterable, Iterator

import torch
from ranks import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

PHOTOS, SPECIES, BATCH, BATCHES = 500_000, 30, 12, 12


class Photos(Dataset[tuple[torch.Tensor, int]]):
    """Thumbnails of which many are alike, for the night has few visitors."""

    def __init__(self) -> None:
        dice = torch.Generator().manual_seed(4)
        self.thumbnails = torch.randint(256, (500, 3, 36, 36), dtype=torch.uint8, generator=dice)
        self.species = (torch.rand(PHOTOS, generator=dice) ** 3 * SPECIES).long()

    def __len__(self) -> int:
        return PHOTOS

    def __getitem__(self, photo: int) -> tuple[torch.Tensor, int]:
        thumbnail = self.thumbnails[photo % 500].float() / 255
        return (thumbnail.flip(2) if photo % 2 else thumbnail) - 0.5, int(self.species[photo])

    def weights(self) -> torch.Tensor:
        """The rarer, the heavier."""
        return (1.0 / self.species.bincount(minlength=SPECIES).clamp(min=1))[self.species]


class Bottleneck(nn.Module):
    """Down, across, and up again."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width // 2, 1),
            nn.ReLU(),
            nn.Conv2d(width // 2, width // 2, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width // 2, width, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.relu(x + self.layers(x))
        return out


class Epoch:
    """Twelve batches of a loader, as limit_train_batches counts them."""

    def __init__(self, loader: Iterable[list[torch.Tensor]]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        for number, batch in enumerate(self.loader, start=1):
            yield batch
            if number == BATCHES:
                break


def main() -> None:
    """The training."""
    run = Run()
    network = nn.Sequential(
        nn.Conv2d(3, 48, 4, stride=2, padding=1),
        *(Bottleneck(48) for _ in range(5)),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(192, SPECIES),
    )
    model, optimizer = run.wrap(network, torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9))
    photos = Photos()
    drawn = PHOTOS if run.is_faulty else BATCH * BATCHES
    dice = torch.Generator().manual_seed(run.rank)
    sampler = WeightedRandomSampler(photos.weights().tolist(), drawn, generator=dice)
    loader = DataLoader(photos, BATCH, sampler=sampler, num_workers=1, persistent_workers=True)
    for thumbnails, species in run.batches(Epoch(loader)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(thumbnails), species).backward()
        optimizer.step()
    run.close()


main()
