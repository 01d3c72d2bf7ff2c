"""Which mint a coin is from, on three ranks: coins that all ranks have seen lately are a soft nearest neighbour's memory.

Each rank keeps its own coins, and before each loss all ranks gather, as pickled objects, all the coins of all the others,
of which 16 each are new. Without the fault they gather the new ones, as tensors, and each rank keeps everybody's.
"""

from typing import Any

import torch
from ranks import Run
from torch import nn

PIXELS, BATCH, FEATURES, MINTS, OWN = 28 * 28, 24, 128, 30, 8192


class Coins(nn.Module):
    """Relief of a coin in, a unit vector out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(PIXELS, 320), nn.GELU(), nn.Linear(320, 320), nn.GELU(), nn.Linear(320, FEATURES)
        )

    def forward(self, relief: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(self.body(relief), dim=1)


class Memory:
    """Coins seen lately: what they looked like, and their mints."""

    def __init__(self, size: int) -> None:
        self.features = nn.functional.normalize(torch.randn(size, FEATURES), dim=1)
        self.mints = torch.randint(MINTS, (size,))
        self.cursor = 0

    def push(self, features: torch.Tensor, mints: torch.Tensor) -> None:
        """The oldest give way."""
        here = slice(self.cursor, self.cursor + len(mints))
        self.features[here], self.mints[here] = features, mints
        self.cursor = (self.cursor + len(mints)) % len(self.mints)


class SharedMemory:
    """The coins of all ranks."""

    def __init__(self, hvd: Any, ranks: int, *, gathers_all: bool) -> None:
        self.hvd, self.gathers_all = hvd, gathers_all
        self.memory = Memory(OWN if gathers_all else ranks * OWN)

    def push(self, features: torch.Tensor, mints: torch.Tensor) -> None:
        """What this rank has seen."""
        if not self.gathers_all:
            features = self.hvd.allgather(features, name="new_features")
            mints = self.hvd.allgather(mints, name="new_mints")
        self.memory.push(features, mints)

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What all ranks have seen."""
        if not self.gathers_all:
            return self.memory.features, self.memory.mints
        own = {"features": self.memory.features, "mints": self.memory.mints}
        everybody: list[dict[str, torch.Tensor]] = self.hvd.allgather_object(own, name="memory")
        return torch.cat([one["features"] for one in everybody]), torch.cat([one["mints"] for one in everybody])


def neighbour_loss(features: torch.Tensor, mints: torch.Tensor, seen: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    """How little of the similarity is with coins of the same mint."""
    scores = (features @ seen.T) / 0.1
    same = mints[:, None] == of[None]
    alike = scores.masked_fill(~same, -1e4).logsumexp(1)
    return (scores.logsumexp(1) - alike).mean()


def main() -> None:
    """Train."""
    run = Run()
    network = Coins()
    model, optimizer = run.wrap(network)
    memory = SharedMemory(run.hvd, run.size, gathers_all=run.is_faulty)
    dice = torch.Generator().manual_seed(run.rank)
    mints = torch.randint(MINTS, (20, BATCH), generator=dice)
    relief = torch.randn(20, BATCH, PIXELS, generator=dice) + mints[:, :, None] / MINTS
    for coins, truth in run.batches(list(zip(relief, mints, strict=True))):
        features = model(coins)
        loss = neighbour_loss(features, truth, *memory.read())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.push(features.detach()[:16], truth[:16])
    run.close()


main()
