"""Waves at ocean buoys, tomorrow's from the last days', by a convolutional network; a static graph under DistributedDataParallel.

A DistributedSampler, short epochs (24 batches), a cosine with warm restarts, and after each epoch a look at a part of the
validation data, averaged over the ranks.  Nothing is wrong.
"""

import torch
from ranks import Run
from torch import distributed, nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

BUOYS, HOURS, AHEAD, BATCH, WIDTH, EPOCH = 24, 96, 12, 16, 56, 24


class Waves(nn.Module):
    """The last hours of all buoys in, the next ones out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(BUOYS, WIDTH, 5, padding=2), nn.SiLU())
        for _ in range(4):
            self.body.extend([nn.Conv1d(WIDTH, WIDTH, 5, padding=2), nn.GroupNorm(4, WIDTH), nn.SiLU()])
        self.out = nn.Linear(HOURS, AHEAD)
        self.buoys = nn.Conv1d(WIDTH, BUOYS, 1)

    def forward(self, hours: torch.Tensor) -> torch.Tensor:
        ahead: torch.Tensor = self.buoys(self.out(self.body(hours)))
        return ahead


def make_data(count: int, seed: int) -> TensorDataset:
    """Swell from afar, and wind."""
    dice = torch.Generator().manual_seed(seed)
    time = torch.arange(HOURS + AHEAD) / 12
    phase = torch.rand(count, BUOYS, 1, generator=dice) * 6
    waves = (time + phase).sin() + 0.2 * torch.randn(count, BUOYS, HOURS + AHEAD, generator=dice)
    return TensorDataset(waves[:, :, :HOURS].clone(), waves[:, :, HOURS:].clone())


@torch.no_grad()
def validate(model: nn.Module, data: TensorDataset) -> float:
    """The mean error over the ranks."""
    hours, ahead = data.tensors
    model.eval()
    error = (model(hours) - ahead).abs().mean()
    model.train()
    distributed.all_reduce(error)
    return float(error) / distributed.get_world_size()


def main() -> None:
    """Train."""
    run = Run()
    waves = Waves()
    model, optimizer = run.wrap(waves, torch.optim.SGD(waves.parameters(), lr=0.05, momentum=0.9), static_graph=True)
    schedule = CosineAnnealingWarmRestarts(optimizer, T_0=2 * EPOCH)
    data, held = make_data(EPOCH * BATCH * run.size, 1), make_data(BATCH, 2 + run.rank)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, run.size, run.rank)
    loader = DataLoader(data, BATCH, sampler=sampler, drop_last=True)
    errors = []
    for hours, ahead in run.batches(loader):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(hours), ahead).backward()
        optimizer.step()
        schedule.step()
        if run.step % EPOCH == 0:
            errors.append(validate(waves, held))
            sampler.set_epoch(run.step // EPOCH)
    if run.rank == 0:
        print(f"error {errors[0]:.3f} to {errors[-1]:.3f}")
    run.close()


main()
