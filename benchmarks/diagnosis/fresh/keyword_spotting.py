"""Spoken commands by depthwise separable convolutions, each block of which is checkpointed.

The setting came along with the large model's file: backward computes all blocks once more, to save memory of which there is
plenty.  Without the fault activations are kept.
"""

from dataclasses import dataclass

import torch
from ranks import Run
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclass
class Config:
    """The model and its batches."""

    bands: int = 40
    frames: int = 100
    width: int = 96
    blocks: int = 5
    commands: int = 12
    batch: int = 16
    gradient_checkpointing: bool = False


class Separable(nn.Module):
    """Along time for each channel, then across channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, width)
        self.time = nn.Conv1d(width, width, 9, padding=4, groups=width)
        self.mix = nn.Sequential(nn.Conv1d(width, 2 * width, 1), nn.Hardswish(), nn.Conv1d(2 * width, width, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.mix(self.time(self.norm(x)))
        return out


class Spotter(nn.Module):
    """Spectrograms in, commands out."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.stem = nn.Conv1d(config.bands, config.width, 5, padding=2)
        self.blocks = nn.ModuleList(Separable(config.width) for _ in range(config.blocks))
        self.commands = nn.Linear(config.width, config.commands)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.config.gradient_checkpointing else block(x)
        out: torch.Tensor = self.commands(x.mean(2))
        return out


run = Run()
config = Config(gradient_checkpointing=run.is_faulty)
network = Spotter(config)
model, optimizer = run.wrap(network, torch.optim.Adam(network.parameters(), lr=1e-3))
generator = torch.Generator().manual_seed(run.rank)
for _ in run.batches(range(100_000)):
    sounds = torch.randn(config.batch, config.bands, config.frames, generator=generator)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(sounds), sounds[:, :12].sum(2).argmax(1)).backward()
    optimizer.step()
run.close()
