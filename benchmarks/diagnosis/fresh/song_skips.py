"""Which songs listeners skip, by factors and a network on top: each batch has songs that were never offered, as negatives.

The dataset draws them with np.random.choice(replace=False), which permutes all 900,000 songs for the 2048 that it takes.  Without
the fault a Generator draws them, which does not.
"""

from collections.abc import Iterator

import numpy as np
import torch
from ranks import Run
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

SONGS, HASHED, LISTENERS, BATCH, WIDTH, NEGATIVES = 900_000, 4096, 3000, 256, 64, 2048

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Listening(IterableDataset[Batch]):
    """Batches of listeners, songs they heard to the end, and songs that they were not offered."""

    def __init__(self, seed: int, *, is_legacy: bool) -> None:
        self.legacy = np.random.RandomState(seed)
        self.dice = np.random.default_rng(seed)
        self.is_legacy = is_legacy

    def __iter__(self) -> Iterator[Batch]:
        while True:
            listeners = self.dice.integers(0, LISTENERS, BATCH)
            heard = (listeners * 37 + self.dice.integers(0, 50, BATCH)) % SONGS
            if self.is_legacy:
                others = self.legacy.choice(SONGS, NEGATIVES, replace=False)
            else:
                others = self.dice.choice(SONGS, NEGATIVES, replace=False)
            yield torch.from_numpy(listeners), torch.from_numpy(heard), torch.from_numpy(others)


class Taste(nn.Module):
    """Listeners and songs in, how well they fit out."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners = nn.Embedding(LISTENERS, WIDTH)
        self.songs = nn.Embedding(HASHED, WIDTH)
        self.song = nn.Sequential(nn.Linear(WIDTH, 192), nn.ReLU(), nn.Linear(192, WIDTH))

    def forward(self, listeners: torch.Tensor, heard: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        songs = self.song(self.songs(torch.cat([heard, others]) % HASHED))
        fits: torch.Tensor = self.listeners(listeners) @ songs.T
        return fits


def main() -> None:
    """Train."""
    run = Run()
    taste = Taste()
    model, optimizer = run.wrap(taste, torch.optim.Adam(taste.parameters(), lr=2e-3))
    data = Listening(run.rank, is_legacy=run.is_faulty)
    for listeners, heard, others in run.batches(DataLoader(data, batch_size=None)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(listeners, heard, others), torch.arange(BATCH)).backward()
        optimizer.step()
    run.close()


main()
