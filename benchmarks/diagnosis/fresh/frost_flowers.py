"""Frost on windows by a diffusion model: two micro-batches a step, an average of the weights, and pictures that a worker turns.

The worker needs a small part of the time that the model needs, and the average is one fused call.  Nothing is wrong.
"""

import copy
import math

import torch
from ranks import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, BATCH, MICRO, WIDTH, TIMES = 24, 8, 2, 32, 200


class Windows(Dataset[torch.Tensor]):
    """Branching patterns, flipped, turned and shifted."""

    def __init__(self, seed: int, count: int = 240) -> None:
        dice = torch.Generator().manual_seed(seed)
        y, x = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
        arms = torch.randint(3, 8, (count, 1, 1), generator=dice)
        self.frost = torch.cos(arms * torch.atan2(y, x)) * torch.exp(-2 * (x**2 + y**2))

    def __len__(self) -> int:
        return len(self.frost)

    def __getitem__(self, index: int) -> torch.Tensor:
        picture = torch.rot90(self.frost[index], int(torch.randint(4, ())))
        picture = picture.roll((int(torch.randint(5, ())), int(torch.randint(5, ()))), (0, 1))
        return picture[None] * (1 + 0.1 * torch.randn(()))


class Residual(nn.Module):
    """Two convolutions that know the time."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.time = nn.GroupNorm(8, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.first, self.second = (nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.first(nn.functional.silu(self.norm(x))) + self.time(time)[:, :, None, None]
        out: torch.Tensor = x + self.second(nn.functional.silu(y))
        return out


class Denoiser(nn.Module):
    """A noisy picture and its time in, the noise out."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Conv2d(1, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, 1, 3, padding=1)
        self.blocks = nn.ModuleList(Residual() for _ in range(3))
        self.register_buffer("waves", torch.exp(-math.log(1000) * torch.arange(WIDTH // 2) / (WIDTH // 2)))

    def forward(self, noisy: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        angles = times[:, None] * self.get_buffer("waves")
        time = torch.cat([angles.sin(), angles.cos()], 1)
        x = self.into(noisy)
        for block in self.blocks:
            x = block(x, time)
        noise: torch.Tensor = self.out(x)
        return noise


class Average:
    """An exponential moving average of the weights, to draw with later."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).requires_grad_(requires_grad=False)
        self.kept: list[torch.Tensor] = list(self.model.parameters())

    def follow(self, model: nn.Module) -> None:
        torch._foreach_lerp_(self.kept, [weight.detach() for weight in model.parameters()], 0.01)


run = Run()
denoiser = Denoiser()
average = Average(denoiser)
kept = torch.cos(torch.linspace(0, math.pi / 2, TIMES)).square()
model, optimizer = run.wrap(denoiser, torch.optim.AdamW(denoiser.parameters(), lr=3e-4), backward_passes_per_step=MICRO)
loader = DataLoader(
    Windows(run.rank), BATCH * MICRO, shuffle=True, num_workers=1, persistent_workers=True, drop_last=True
)
for pictures in run.batches(loader):
    optimizer.zero_grad()
    for picture in pictures.split(BATCH):
        times = torch.randint(TIMES, (len(picture),))
        noise = torch.randn_like(picture)
        share = kept[times].view(-1, 1, 1, 1)
        guess = model(share.sqrt() * picture + (1 - share).sqrt() * noise, times.float())
        (nn.functional.mse_loss(guess, noise) / MICRO).backward()
    optimizer.step()
    average.follow(denoiser)
run.close()
