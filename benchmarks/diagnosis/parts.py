"""The parts of the training that can be made slow: data, network, optimizer, and storage."""

from collections.abc import Iterator
from typing import Any

import torch
from cnn import Images, Network
from faults import Faults
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class FaultyImages(Images):
    """Images that take their time."""

    def __init__(self, count: int, batch_size: int, size: int, faults: Faults) -> None:
        super().__init__(count)
        self.batch_size, self.size, self.faults = batch_size, size, faults

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        # The sampler gives each rank every size-th sample.  A worker knows no step, but this is the batch of the epoch.
        batch = index // self.size // self.batch_size + 1
        self.faults.sleep("slow-dataset", 1 / self.batch_size, batch)
        self.faults.spin("slow-transform", 1 / self.batch_size, batch)
        return super().__getitem__(index)


class Collate:
    """The usual collation, slowed down on demand."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def __call__(self, samples: list[tuple[torch.Tensor, int]]) -> list[torch.Tensor]:
        self.faults.sleep("slow-collate")
        batch: list[torch.Tensor] = torch.utils.data.default_collate(samples)
        return batch


class FaultyNetwork(Network):
    """The samples' network, slowed down, and with huge layers on demand."""

    def __init__(self, channels: int, faults: Faults) -> None:
        super().__init__(channels)
        self.faults = faults
        self.late = nn.Linear(3000, 3000, bias=False) if "late-layer" in faults.names else None
        widths = [3000] * ("huge-tensor" in faults.names) + [2121] * 2 * ("two-huge" in faults.names)
        self.widths = widths
        self.huge = nn.ModuleList(nn.Linear(width, width, bias=False) for width in widths)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.faults.sleep("slow-forward")
            self.faults.spin("busy-forward")
        if self.late is not None:
            x = x + 1e-6 * self.late(x.flatten(1)[:, :3000]).mean()
        scores = super().forward(x)
        if scores.requires_grad and (self.faults.has("slow-backward") or self.faults.has("busy-backward")):
            scores.register_hook(self._slow_backward)
        for width, layer in zip(self.widths, self.huge, strict=True):
            scores = scores + 1e-6 * layer(torch.ones(width)).mean()
        return scores

    def _slow_backward(self, _: torch.Tensor) -> None:
        self.faults.sleep("slow-backward")
        self.faults.spin("busy-backward")


class SlowFile:
    """Takes bytes, the first of them slowly."""

    def __init__(self, faults: Faults) -> None:
        self.faults: Faults | None = faults

    def write(self, data: bytes) -> int:
        if self.faults is not None:
            self.faults.sleep("checkpoint")
        self.faults = None
        return len(data)

    def flush(self) -> None:
        pass


class HeavyStep:
    """What a careless optimizer does: it moves far more memory than the parameters have."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.state = torch.zeros(32 * 1024 * 1024) if faults.has("heavy-optimizer") else None

    def __call__(self, *_: Any) -> None:
        self.faults.sleep("slow-optimizer")
        self.faults.spin("busy-optimizer")
        if self.state is not None:
            self.state.mul_(0.999).add_(1e-3)


class Sizes:
    """How many samples each step takes: the same, three times as many, or by chance."""

    def __init__(self, batch_size: int, faults: Faults, rank: int, steps: int, seed: int = 7) -> None:
        chance = torch.Generator().manual_seed(seed + rank)
        sizes = torch.full((steps,), batch_size)
        if faults.has("big-batches"):
            sizes *= 3
        if faults.has("uneven-batches"):
            sizes = torch.randint(batch_size // 4, 2 * batch_size, (steps,), generator=chance)
        self.sizes = [int(size) for size in sizes]

    def __iter__(self) -> Iterator[list[int]]:
        first = 0
        for size in self.sizes:
            yield list(range(first, first + size))
            first += size

    def __len__(self) -> int:
        return len(self.sizes)


def make_loader(
    faults: Faults, rank: int, size: int, *, steps: int, batch_size: int, workers: int, persistent: bool
) -> DataLoader[Any]:
    """Batches of one epoch of so many steps."""
    sizes = Sizes(batch_size, faults, rank, steps)
    dataset = FaultyImages(sum(sizes.sizes) * size, batch_size, size, faults)
    collate = Collate(faults)
    if faults.has("big-batches") or faults.has("uneven-batches"):
        return DataLoader(dataset, batch_sampler=sizes, num_workers=workers, collate_fn=collate)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, num_replicas=size, rank=rank, shuffle=False)
    return DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=workers,
        collate_fn=collate,
        persistent_workers=bool(workers) and persistent,
    )
