"""Kinds of cells by their looks along a track, a transformer over small crops, under DistributedDataParallel.

The collate function makes a tensor of a list of arrays, which torch.tensor goes through number by number.  Without the fault the
arrays are stacked first.
"""

from functools import partial

import numpy as np
import torch
from ranks import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset

CROP, FRAMES, KINDS, BATCH = 14, 10, 6, 40

Sample = tuple[list[np.ndarray], int]


class Tracks(Dataset[Sample]):
    """Crops around a cell in ten frames that follow each other."""

    def __init__(self, seed: int, count: int = 1200) -> None:
        dice = np.random.default_rng(seed)
        self.kinds = dice.integers(KINDS, size=count)
        y, x = np.mgrid[-1 : 1 : CROP * 1j, -1 : 1 : CROP * 1j]
        round_ = np.exp(-(x**2 + y**2) * (1 + self.kinds[:, None, None]))
        self.crops = (round_[:, None] + dice.normal(0, 0.2, (count, FRAMES, CROP, CROP))).astype("float32")

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, index: int) -> Sample:
        return list(self.crops[index]), int(self.kinds[index])


def collate(samples: list[Sample], *, stacks: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(batch, frames, pixels) and the kinds."""
    crops = [frames for frames, _ in samples]
    kinds = torch.tensor([kind for _, kind in samples])
    tensor = torch.from_numpy(np.stack([np.stack(frames) for frames in crops])) if stacks else torch.tensor(crops)
    return tensor.flatten(2), kinds


class Looks(nn.Module):
    """A token for each frame."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embed = nn.Linear(CROP * CROP, width)
        self.place = nn.Parameter(0.02 * torch.randn(FRAMES, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.kind = nn.Linear(width, KINDS)

    def forward(self, crops: torch.Tensor) -> torch.Tensor:
        kinds: torch.Tensor = self.kind(self.body(self.embed(crops) + self.place).mean(1))
        return kinds


def main() -> None:
    """The training."""
    run = Run()
    looks = Looks()
    model, optimizer = run.wrap(looks, torch.optim.AdamW(looks.parameters(), lr=5e-4))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=10_000)
    loader = DataLoader(
        Tracks(run.rank),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        collate_fn=partial(collate, stacks=not run.is_faulty),
    )
    for crops, kinds in run.batches(loader):
        loss = nn.functional.cross_entropy(model(crops), kinds, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    run.close()


main()
