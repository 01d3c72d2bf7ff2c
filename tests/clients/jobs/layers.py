"""What the jobs of all frameworks train: a small network, and a dataset; with FAULT=slow-rank rank 1 sleeps in forward."""

import os
import time

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

FEATURES = 64
STEPS = 24
BATCH = 8


class Points(Dataset):
    """Random points; with FAULT=slow-dataset reading takes 40 ms a batch."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if os.environ.get("FAULT") == "slow-dataset" and index % BATCH == 0:
            time.sleep(0.04)
        values = torch.randn(FEATURES, generator=torch.Generator().manual_seed(index))
        return {"values": values, "labels": values.sum() > 0}


class Network(nn.Module):
    """Three layers.  Returns the loss if it gets labels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2)
        )

    def forward(self, values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        if os.environ.get("FAULT") == "slow-rank" and torch.distributed.get_rank() == 1:
            time.sleep(0.08)
        scores = self.layers(values)
        if labels is None:
            return {"scores": scores}
        return {"loss": nn.functional.cross_entropy(scores, labels.long()), "scores": scores}
