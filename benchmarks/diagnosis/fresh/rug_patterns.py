"""Patterns for rugs by diffusion: a transformer over patches that learns to remove noise, with a slow average of its weights.

Noise levels are drawn anew at each step, low ones are weighted less, and the average is kept by one operation over all
weights. Nothing is wrong.
"""

import copy
import math

import torch
from ranks import Run
from torch import nn

SIDE, PATCH, BATCH, WIDTH, DEPTH = 32, 4, 10, 96, 3
PATCHES, PIXELS = (SIDE // PATCH) ** 2, 3 * PATCH * PATCH


class Layer(nn.Module):
    """Attention and two linear layers, both scaled and shifted by the noise level."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH))
        self.modulate = nn.Linear(WIDTH, 4 * WIDTH)

    def forward(self, rows: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        scale, shift, inner_scale, inner_shift = self.modulate(level)[:, None].chunk(4, 2)
        mixed = self.mix(torch.addcmul(shift, self.norm(rows), 1 + scale))
        query, key, value = mixed.view(len(rows), PATCHES, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value)
        rows = rows + self.out(seen.transpose(1, 2).reshape(len(rows), PATCHES, WIDTH))
        out: torch.Tensor = rows + self.inner(torch.addcmul(inner_shift, self.norm(rows), 1 + inner_scale))
        return out


class Denoiser(nn.Module):
    """Noisy patches and the noise level in, the noise out."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(PIXELS, WIDTH), nn.Linear(WIDTH, PIXELS)
        self.place = nn.Parameter(torch.randn(PATCHES, WIDTH) / 10)
        self.level = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU())
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))

    def forward(self, noisy: torch.Tensor, waves: torch.Tensor) -> torch.Tensor:
        rows, level = self.enter(noisy) + self.place, self.level(waves)
        for layer in self.layers:
            rows = layer(rows, level)
        noise: torch.Tensor = self.leave(rows)
        return noise


def waves_of(levels: torch.Tensor) -> torch.Tensor:
    """A level as sines and cosines."""
    speeds = torch.exp(torch.linspace(0, math.log(1000), WIDTH // 2))
    angles = levels[:, None] * speeds
    return torch.cat([angles.sin(), angles.cos()], 1)


def rugs(count: int, seed: int) -> torch.Tensor:
    """Stripes and diamonds, as rows of patches."""
    dice = torch.Generator().manual_seed(seed)
    phase = 6.28 * torch.rand(count, 3, 1, 1, generator=dice)
    line = torch.arange(SIDE)
    pictures = torch.sin(phase + (line[:, None] - line[None]).abs() / 2)
    rows = pictures.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH).permute(0, 2, 3, 1, 4, 5)
    return rows.reshape(count, PATCHES, PIXELS)


def main() -> None:
    """Train."""
    run = Run()
    network = Denoiser()
    slow = copy.deepcopy(network).requires_grad_(requires_grad=False)
    slow_weights: list[torch.Tensor] = [*slow.parameters()]
    weights: list[torch.Tensor] = [*network.parameters()]
    model, optimizer = run.wrap(network, torch.optim.AdamW(weights, lr=1e-3, fused=True))
    dice = torch.Generator().manual_seed(60 + run.rank)
    for clean in run.batches(rugs(24 * BATCH, run.rank).split(BATCH)):
        levels = torch.rand(len(clean), generator=dice)
        noise = torch.randn(clean.shape, generator=dice)
        angle = (levels * math.pi / 2)[:, None, None]
        optimizer.zero_grad()
        guess = model(angle.cos() * clean + angle.sin() * noise, waves_of(levels))
        ((guess - noise).square().mean((1, 2)) * (0.5 + levels)).mean().backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(slow_weights, weights, 0.01)
    run.close()


main()
