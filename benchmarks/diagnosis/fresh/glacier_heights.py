"""Heights of glaciers, super-resolution of tiles in HDF5, a file for each rank.

Rank 1's file has chunks of 64 tiles by a sixteenth of a tile, as whoever wrote it wanted time series, so reading a tile unpacks
the sixteen chunks that hold 63 others, too.  Without the fault a tile is a chunk there as in rank 0's.
"""

import tempfile
from pathlib import Path

import h5py
import numpy as np
import torch
from ranks import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, TILES, BATCH, WIDTH = 64, 256, 8, 24


class Tiles(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Coarse and fine heights."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: h5py.File | None = None

    def __len__(self) -> int:
        return TILES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.file is None:  # in the worker, as HDF5 does not survive a fork
            self.file = h5py.File(self.path)
        fine = torch.from_numpy(self.file["heights"][index]).unsqueeze(0)
        return nn.functional.avg_pool2d(fine, 4), fine


def write(path: Path, seed: int, chunks: tuple[int, int, int]) -> None:
    """Slopes, ridges and some roughness, to the decimetre."""
    dice = np.random.default_rng(seed)
    coarse = dice.normal(size=(TILES, 9, 9)).cumsum(1).cumsum(2)
    heights = np.kron(coarse, np.ones((1, 8, 8)))[:, :SIDE, :SIDE] + dice.normal(0, 0.2, (TILES, SIDE, SIDE))
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "heights", data=heights.round(1).astype("float32"), chunks=chunks, compression="gzip", shuffle=True
        )


class Finer(nn.Module):
    """Four times as many pixels in each direction."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, WIDTH, 3, padding=1)
        self.body = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(6))
        self.last = nn.Sequential(nn.Conv2d(WIDTH, 64, 3, padding=1), nn.PixelShuffle(4), nn.Conv2d(4, 1, 3, padding=1))

    def forward(self, coarse: torch.Tensor) -> torch.Tensor:
        x = self.first(coarse)
        for convolution in self.body:
            x = x + nn.functional.leaky_relu(convolution(x), 0.1)
        fine: torch.Tensor = self.last(x) + nn.functional.interpolate(coarse, scale_factor=4.0, mode="bicubic")
        return fine


run = Run()
finer = Finer()
model, optimizer = run.wrap(finer, torch.optim.Adam(finer.parameters(), lr=3e-4))
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / f"glaciers{run.rank}.h5"
    write(path, run.rank, (64, SIDE // 4, SIDE // 4) if run.is_faulty and run.rank == 1 else (1, SIDE, SIDE))
    loader = DataLoader(Tiles(path), BATCH, shuffle=True, num_workers=1, persistent_workers=True, drop_last=True)
    for coarse, fine in run.batches(loader):
        optimizer.zero_grad()
        loss = nn.functional.l1_loss(model(coarse), fine)
        loss.backward()
        optimizer.step()
    del loader
run.close()
