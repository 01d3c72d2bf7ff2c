"""How many sheep are on a hill, from tiles of an aerial picture: a network over patches that adds up four batches for an update.

Three of four backward passes are under no_sync(), so every fourth is followed by a reduction, clipping and the optimizer.
Nothing is wrong.
"""

import contextlib
from typing import cast

import torch
from ranks import Run
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIDE, PATCH, BATCH, WIDTH, DEPTH, TOGETHER = 64, 8, 14, 104, 4, 4


class Patches(nn.Module):
    """Tiles in, a row of patches out."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(3 * PATCH * PATCH, WIDTH)

    def forward(self, tiles: torch.Tensor) -> torch.Tensor:
        rows = tiles.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH)
        patches: torch.Tensor = self.enter(rows.permute(0, 2, 3, 1, 4, 5).reshape(len(tiles), -1, 3 * PATCH * PATCH))
        return patches


class Mixer(nn.Module):
    """Mixes patches, then channels."""

    def __init__(self, patches: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.across = nn.Sequential(nn.Linear(patches, 96), nn.GELU(), nn.Linear(96, patches))
        self.along = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        rows = rows + self.across(self.first(rows).transpose(1, 2)).transpose(1, 2)
        mixed: torch.Tensor = rows + self.along(self.second(rows))
        return mixed


class Counter(nn.Module):
    """Tiles in, sheep out."""

    def __init__(self) -> None:
        super().__init__()
        patches = (SIDE // PATCH) ** 2
        self.body = nn.Sequential(Patches(), *(Mixer(patches) for _ in range(DEPTH)))
        self.density = nn.Linear(WIDTH, 1)

    def forward(self, tiles: torch.Tensor) -> torch.Tensor:
        sheep: torch.Tensor = nn.functional.softplus(self.density(self.body(tiles))).sum((1, 2))
        return sheep


def hills(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Green noise with white squares."""
    dice = torch.Generator().manual_seed(seed)
    tiles = torch.rand(count, 3, SIDE, SIDE, generator=dice) / 2
    sheep = torch.randint(0, 20, (count,), generator=dice)
    for tile, number in zip(tiles, sheep.tolist(), strict=True):
        for top, left in torch.randint(SIDE - 3, (number, 2), generator=dice).tolist():
            tile[:, top : top + 3, left : left + 3] = 1
    return tiles, sheep.float()


def main() -> None:
    """Train."""
    run = Run()
    network = Counter()
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True)
    model, optimizer = run.wrap(network, optimizer, gradient_as_bucket_view=True)
    replicas = cast("DistributedDataParallel", model)
    tiles, sheep = hills(24 * BATCH, run.rank)
    for pictures, counts in run.batches(list(zip(tiles.split(BATCH), sheep.split(BATCH), strict=True))):
        is_update = run.step % TOGETHER == 0
        with contextlib.nullcontext() if is_update else replicas.no_sync():
            loss = nn.functional.poisson_nll_loss(replicas(pictures), counts, log_input=False)
            (loss / TOGETHER).backward()
        if is_update:
            nn.utils.clip_grad_norm_(network.parameters(), 5.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad()
    run.close()


main()
