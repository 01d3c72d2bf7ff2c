"""Which chute a parcel belongs in: a network that sees the parcels it got wrong more often.

The sampler draws each batch with numpy's choice(p=...) out of all 200,000 parcels, for which it makes probabilities of all
priorities, checks them and sums them up, each time for 256 parcels. Without the fault it draws 50 batches at a time.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from ranks import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

PARCELS, MEASURES, CHUTES, BATCH, WIDTH = 200_000, 24, 40, 256, 320
AHEAD = 50

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Parcels(Dataset[Batch]):
    """Scanned parcels; a whole batch at a time."""

    def __init__(self, seed: int) -> None:
        dice = torch.Generator().manual_seed(seed)
        self.chutes = torch.randint(CHUTES, (PARCELS,), generator=dice)
        self.measures = torch.randn(PARCELS, MEASURES, generator=dice)
        self.measures[:, 0] += self.chutes / 4
        self.measures[:, 1] += self.chutes % 5

    def __len__(self) -> int:
        return PARCELS

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        chosen = torch.as_tensor(indices)
        return chosen, self.measures[chosen], self.chutes[chosen]


class HardOnesOften(Sampler[list[int]]):
    """Batches of indices; a parcel is as likely as a power of its last loss."""

    def __init__(self, seed: int, batches: int, ahead: int) -> None:
        self.dice = np.random.default_rng(seed)
        self.priorities = np.full(PARCELS, 4.0)
        self.batches, self.ahead = batches, ahead

    def update(self, chosen: torch.Tensor, losses: torch.Tensor) -> None:
        """What the network made of them."""
        self.priorities[chosen.numpy()] = losses.numpy() + 0.05

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, self.batches, self.ahead):
            weights = self.priorities**0.6
            chances = weights / weights.sum()
            count = min(self.ahead, self.batches - start)
            yield from self.dice.choice(PARCELS, size=(count, BATCH), p=chances).tolist()


def as_it_is(batch: Any) -> Any:
    """The dataset has collated it."""
    return batch


def main() -> None:
    """Train."""
    run = Run()
    parcels = Parcels(run.rank)
    sampler = HardOnesOften(100 + run.rank, 400, 1 if run.is_faulty else AHEAD)
    loader = DataLoader(parcels, batch_sampler=sampler, collate_fn=as_it_is)
    network = nn.Sequential(
        nn.Linear(MEASURES, WIDTH),
        nn.GELU(),
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()) for _ in range(4)),
        nn.Linear(WIDTH, CHUTES),
    )
    model, optimizer = run.wrap(network, torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True))
    criterion = nn.CrossEntropyLoss(reduction="none")
    right = torch.zeros(())
    for chosen, measures, chutes in run.batches(loader):
        optimizer.zero_grad()
        scores = model(measures)
        losses = criterion(scores, chutes)
        losses.mean().backward()
        optimizer.step()
        sampler.update(chosen, losses.detach())
        right += (scores.argmax(1) == chutes).float().mean()
    if run.rank == 0:
        print(f"{100 * float(right) / run.step:.1f} % right")
    run.close()


main()
