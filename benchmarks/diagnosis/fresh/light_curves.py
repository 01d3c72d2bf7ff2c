"""Variable stars from their light curves: the dataset opens the compressed archive for every single curve.

np.load of an .npz is lazy, so each item unpacks the brightness of all stars to take one row of it.  Without the fault the arrays
are unpacked once.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ranks import Run
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

STARS, POINTS = 600, 96
BATCH = 20


def write_survey(folder: Path) -> Path:
    """The archive: the brightness of all stars, and their kinds."""
    rng = np.random.default_rng(11)
    phase = np.linspace(0, 6, POINTS, dtype=np.float32) + rng.uniform(0, 6, (STARS, 1)).astype(np.float32)
    flux = (np.sin(phase) * 200 + rng.normal(0, 20, phase.shape)).round().astype(np.int16)
    np.savez_compressed(folder / "survey.npz", flux=flux, kind=rng.integers(0, 6, STARS))
    return folder / "survey.npz"


class LightCurves(Dataset[tuple[torch.Tensor, int]]):
    """A curve and the kind of its star."""

    def __init__(self, archive: Path, *, in_memory: bool) -> None:
        self.archive = archive
        self.survey: Mapping[str, NDArray[Any]] | None = dict(np.load(archive)) if in_memory else None

    def __len__(self) -> int:
        return STARS

    def __getitem__(self, star: int) -> tuple[torch.Tensor, int]:
        survey: Mapping[str, NDArray[Any]] = self.survey or np.load(self.archive)
        flux = survey["flux"][star].astype(np.float32) / 200.0
        return torch.from_numpy(flux)[None], int(survey["kind"][star])


def residual(channels: int, dilation: int) -> nn.Sequential:
    """What a block adds to its input."""
    return nn.Sequential(
        nn.Conv1d(channels, channels, 5, padding=2 * dilation, dilation=dilation), nn.GroupNorm(4, channels), nn.SiLU()
    )


class TemporalNet(nn.Module):
    """Dilated convolutions along time."""

    def __init__(self, channels: int = 48) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, channels, 7, padding=3)
        self.blocks = nn.ModuleList(residual(channels, 2**i) for i in range(6))
        self.last = nn.Linear(channels, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        out: torch.Tensor = self.last(x.amax(-1))
        return out


run = Run()
with tempfile.TemporaryDirectory() as folder:
    stars = LightCurves(write_survey(Path(folder)), in_memory=not run.is_faulty)
    sampler: DistributedSampler[tuple[torch.Tensor, int]] = DistributedSampler(stars, run.size, run.rank)
    loader = DataLoader(stars, batch_size=BATCH, sampler=sampler, drop_last=True)
    net = TemporalNet()
    model, opt = run.wrap(net, optim.NAdam(net.parameters(), lr=1e-3))
    for curves, kinds in run.batches(loader):
        loss = nn.functional.cross_entropy(model(curves), kinds)
        opt.zero_grad()
        loss.backward()
        opt.step()
    run.close()
