"""Galaxies of two telescopes, four ranks, two by two: each telescope keeps statistics of its own for the brightness.

The process groups of the two are made where they are needed, which is in each step, and a new group connects its ranks anew.
Without the fault they are made once.
"""

import torch
from ranks import Run
from torch import distributed, nn

SIDE, BATCH, TELESCOPES = 24, 8, ((0, 1), (2, 3))

Group = distributed.ProcessGroup


def conv(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """A convolution and what belongs to it."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False), nn.GroupNorm(4, outputs), nn.SiLU()
    )


class Galaxies(nn.Module):
    """A picture in five bands in, shape and redshift out."""

    def __init__(self) -> None:
        super().__init__()
        self.eyes = nn.Sequential(conv(5, 24), conv(24, 32, 2), conv(32, 32), conv(32, 48, 2), conv(48, 48))
        self.shape, self.redshift = nn.Linear(48, 5), nn.Linear(48, 1)

    def forward(self, sky: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = self.eyes(sky).mean((2, 3))
        return self.shape(seen), self.redshift(seen).squeeze(1)


def make_groups() -> list[Group]:
    """A group for each telescope, which all ranks have to make."""
    return [distributed.new_group(list(ranks)) for ranks in TELESCOPES]


class Brightness:
    """Mean and spread of what a telescope sees, followed slowly."""

    def __init__(self, rank: int, *, is_group_new: bool) -> None:
        self.telescope = next(number for number, ranks in enumerate(TELESCOPES) if rank in ranks)
        self.groups = None if is_group_new else make_groups()
        self.moments = torch.tensor([0.0, 1.0])

    def normalise(self, sky: torch.Tensor) -> torch.Tensor:
        groups = make_groups() if self.groups is None else self.groups
        group = groups[self.telescope]
        found = torch.stack([sky.mean(), sky.square().mean()])
        distributed.all_reduce(found, group=group)
        if self.groups is None:
            distributed.destroy_process_group(group)
        self.moments.lerp_(found / len(TELESCOPES[self.telescope]), 0.1)
        mean, square = self.moments
        normal: torch.Tensor = (sky - mean) / (square - mean.square()).clamp(min=1e-4).sqrt()
        return normal


run = Run()
galaxies = Galaxies()
model, optimizer = run.wrap(galaxies, torch.optim.AdamW(galaxies.parameters(), lr=1e-3, weight_decay=0.02))
brightness = Brightness(run.rank, is_group_new=run.is_faulty)
dice = torch.Generator().manual_seed(run.rank)
for _ in run.batches(range(10_000)):
    far = torch.rand(BATCH, generator=dice)
    kinds = torch.randint(5, (BATCH,), generator=dice)
    sky = (3 - far).view(-1, 1, 1, 1) + torch.randn(BATCH, 5, SIDE, SIDE, generator=dice)
    sky[torch.arange(BATCH), kinds] += 1.0
    shapes, redshifts = model(brightness.normalise(sky))
    optimizer.zero_grad()
    (nn.functional.cross_entropy(shapes, kinds) + (redshifts - far).square().mean()).backward()
    optimizer.step()
run.close()
