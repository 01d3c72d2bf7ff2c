"""Textures by a generator and a discriminator with an optimizer each, two updates of the latter for each of the former.

The R1 penalty comes in every eighth step ("lazy" regularisation), which is longer on all ranks.  Nothing is wrong.
"""

from functools import partial

import torch
from ranks import Run
from torch import nn
from torch.nn.functional import softplus

NOISE, BATCH, LAZY = 32, 12, 8


class Generator(nn.Module):
    """Noise in, textures out."""

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Sequential(
            nn.Linear(NOISE, 48 * 16),
            nn.Unflatten(1, (48, 4, 4)),
            nn.ConvTranspose2d(48, 32, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 24, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(24, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.make(z)
        return out


class Discriminator(nn.Module):
    """Textures in, how real they are out."""

    def __init__(self) -> None:
        super().__init__()
        self.judge = nn.Sequential(
            nn.Conv2d(3, 24, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(24, 32, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(32, 48, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(48 * 16, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.judge(x)
        return out


def main() -> None:
    """The training."""
    run = Run()
    generator, discriminator = Generator(), Discriminator()
    adam = partial(torch.optim.Adam, lr=2e-4, betas=(0.0, 0.99))
    g, g_optimizer = run.wrap(generator, adam(generator.parameters()))
    d, d_optimizer = run.wrap(discriminator, adam(discriminator.parameters()))
    textures = torch.rand(40, BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(run.rank)) * 2 - 1
    for real in run.batches(textures):
        d.requires_grad_(requires_grad=True)
        for seen in (real, real.flip(3)):
            with torch.no_grad():
                fake = g(torch.randn(BATCH, NOISE))
            d_optimizer.zero_grad()
            real_part = seen.clone().requires_grad_(run.step % LAZY == 0)
            verdict = d(real_part)
            loss = softplus(d(fake)).mean() + softplus(-verdict).mean()
            if run.step % LAZY == 0:
                (slope,) = torch.autograd.grad(verdict.sum(), real_part, create_graph=True)
                loss = loss + 5.0 * LAZY * slope.square().sum((1, 2, 3)).mean()
            loss.backward()
            d_optimizer.step()
        d.requires_grad_(requires_grad=False)  # or its gradients would be averaged here, too
        g_optimizer.zero_grad()
        softplus(-d(g(torch.randn(BATCH, NOISE)))).mean().backward()
        g_optimizer.step()
    run.close()


main()
