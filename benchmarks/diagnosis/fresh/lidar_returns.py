"""Ground or vegetation, from the returns of a lidar: batches with a broken reading are written to disk, to look at later.

Only the third flight, the shard of rank 1 (of three), has any, in every third batch or so, and they are compressed at once.
Without the fault they are counted.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from ranks import Run
from torch import nn

RETURNS, FEATURES, NEIGHBOURS, BATCH = 256, 7, 12, 6
BROKEN_RATIO = {1: 0.35}  # by rank


class Dumps:
    """Batches in which something is not a number."""

    def __init__(self, folder: Path, *, is_writing: bool) -> None:
        self.folder, self.is_writing, self.count = folder, is_writing, 0

    def check(self, returns: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
        """The returns, with zeros for what is broken."""
        if bool(returns.isnan().any()):
            self.count += 1
            if self.is_writing:
                path = self.folder / f"broken{self.count}.npz"
                np.savez_compressed(path, returns=returns.numpy(), edges=returns.numpy()[:, near.numpy()].mean(2))
        return returns.nan_to_num(0.0)


class EdgeConv(nn.Module):
    """Each return and its neighbours."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * inputs, outputs), nn.LeakyReLU(0.2))

    def forward(self, x: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
        own = x.unsqueeze(2).expand(-1, -1, NEIGHBOURS, -1)
        out: torch.Tensor = self.edge(torch.cat([own, x[:, near] - own], 3)).amax(2)
        return out


class Ground(nn.Module):
    """Returns in, two scores for each out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = EdgeConv(FEATURES, 24), EdgeConv(24, 32)
        self.kind = nn.Linear(56, 2)

    def forward(self, returns: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
        low = self.first(returns, near)
        kinds: torch.Tensor = self.kind(torch.cat([low, self.second(low, near)], 2))
        return kinds


run = Run()
ground = Ground()
model, optimizer = run.wrap(ground, torch.optim.Adam(ground.parameters(), lr=1e-3))
dice = torch.Generator().manual_seed(5 + run.rank)
with tempfile.TemporaryDirectory() as folder:
    dumps = Dumps(Path(folder), is_writing=run.is_faulty)
    for _ in run.batches(range(10_000)):
        returns = torch.randn(BATCH, RETURNS, FEATURES, generator=dice)
        if float(torch.rand(1, generator=dice)) < BROKEN_RATIO.get(run.rank, 0.0):
            returns[0, 17, 2] = torch.nan
        near = torch.randint(RETURNS, (RETURNS, NEIGHBOURS), generator=dice)
        kinds = torch.randint(2, (BATCH, RETURNS), generator=dice)
        clean = dumps.check(returns, near)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(clean, near).flatten(0, 1), kinds.flatten()).backward()
        optimizer.step()
run.close()
