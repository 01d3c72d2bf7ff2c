"""Few scans of knees, so an epoch is four batches: the loader starts its worker anew for each of them (no persistent_workers)."""

import torch
from ranks import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SCANS, BATCH, SIDE = 32, 8, 40


class Knees(Dataset[tuple[torch.Tensor, int]]):
    """A volume of slices and the grade of its arthrosis."""

    def __init__(self) -> None:
        self.volumes = torch.randn(SCANS * 2, 1, 8, SIDE, SIDE, generator=torch.Generator().manual_seed(3)).half()

    def __len__(self) -> int:
        return len(self.volumes)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        volume = self.volumes[i].float()
        return (volume - volume.mean()) / volume.std(), i % 5


class VolumeNet(nn.Module):
    """A volume in, its grade out."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv3d(1, width, 3, stride=(1, 2, 2), padding=1)
        self.body = nn.ModuleList(nn.Conv3d(width, width, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.GroupNorm(2, width) for _ in range(2))
        self.grade = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for conv, norm in zip(self.body, self.norms, strict=True):
            x = x + torch.relu(norm(conv(x)))
        out: torch.Tensor = self.grade(x.mean((2, 3, 4)))
        return out


def main() -> None:
    """The training."""
    run = Run()
    net = VolumeNet()
    model, optimizer = run.wrap(net, torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True))
    knees = Knees()
    sampler: DistributedSampler[tuple[torch.Tensor, int]] = DistributedSampler(
        knees, num_replicas=run.size, rank=run.rank, shuffle=True
    )
    loader = DataLoader(
        knees, BATCH, sampler=sampler, num_workers=1, prefetch_factor=3, persistent_workers=not run.is_faulty
    )
    for volumes, grades in run.batches(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(volumes), grades, label_smoothing=0.05).backward()
        optimizer.step()
    run.close()


if __name__ == "__main__":
    main()
