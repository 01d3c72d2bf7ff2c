"""What the samples train: a small residual CNN on made-up images of ten classes."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Made-up images, each made when it is asked for."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label = index % 10
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 32, 32, generator=generator) + 0.1 * label, label


class Block(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.second, self.second_norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(x + self.second_norm(self.second(y)))


class Network(nn.Module):
    """Seven blocks: 60 parameter tensors, 0.3 MB with 24 channels."""

    def __init__(self, channels: int = 24) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(Block(channels) for _ in range(7)))
        self.head: nn.Module = nn.Linear(channels, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return scores
