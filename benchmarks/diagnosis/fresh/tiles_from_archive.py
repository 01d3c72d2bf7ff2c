"""Satellite tiles to land cover: each rank reads its parts of an archive, and those of rank 1 have six times the resolution.

The loader's worker decompresses, normalises and shrinks each of them; they could have been shrunk when the archive was made.
"""

import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
from ranks import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, SIDE, PARTS = 12, 32, 8

Part = tuple[Path, int]
"""A file, and the side of its tiles in pixels."""


def write_parts(folder: Path, *, has_large: bool) -> list[Part]:
    """The archive: each tile is its length in bytes and its compressed pixels."""
    random = np.random.default_rng(5)
    parts = []
    for number in range(PARTS):
        side = SIDE * 6 if has_large and number >= PARTS // 2 else SIDE
        path = folder / f"part{number}.bin"
        with path.open("wb") as file:
            for _ in range(24):
                base = random.integers(0, 255, (side // 4, side // 4, 3), dtype=np.uint8).repeat(4, 0).repeat(4, 1)
                noisy = base ^ random.integers(0, 8, base.shape, dtype=np.uint8)
                tile = zlib.compress(noisy.tobytes(), 1)
                file.write(len(tile).to_bytes(4, "little") + tile)
        parts.append((path, side))
    return parts


class Tiles(Dataset[tuple[torch.Tensor, int]]):
    """The tiles of some parts, again and again."""

    def __init__(self, parts: list[Part], count: int) -> None:
        self.count = count
        self.index: list[tuple[Path, int, int, int]] = []
        for path, side in parts:
            data, at = path.read_bytes(), 0
            while at < len(data):
                nbytes = int.from_bytes(data[at : at + 4], "little")
                self.index.append((path, at + 4, nbytes, side))
                at += 4 + nbytes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, at, nbytes, side = self.index[index * 37 % len(self.index)]
        with path.open("rb") as file:
            file.seek(at)
            pixels = zlib.decompress(file.read(nbytes))
        tile = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(side, side, 3).permute(2, 0, 1).float()
        tile = (tile - tile.mean((1, 2), keepdim=True)) / (tile.std((1, 2), keepdim=True) + 1e-3)
        if side != SIDE:
            tile = nn.functional.interpolate(tile[None], size=(SIDE, SIDE), mode="bicubic", antialias=True)[0]
        return tile, index % 6


run = Run()
layers: list[nn.Module] = []
for inputs, outputs, stride in ((3, 24, 1), (24, 48, 2), (48, 64, 2)):
    layers += [nn.Conv2d(inputs, outputs, 3, stride, padding=1), nn.ReLU()]
model, optimizer = run.wrap(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 6)))
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, run.args.steps)
with tempfile.TemporaryDirectory() as name:
    share = PARTS // run.size
    mine = write_parts(Path(name), has_large=run.is_faulty)[run.rank * share :][:share]
    tiles = Tiles(mine, run.args.steps * BATCH)
    for tile, cover in run.batches(DataLoader(tiles, BATCH, shuffle=True, num_workers=1, persistent_workers=True)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tile), cover).backward()
        optimizer.step()
        schedule.step()
run.close()
