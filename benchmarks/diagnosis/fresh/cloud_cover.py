"""How much of the sky is under clouds, from a station's instruments over a day: a gated network with an average of its weights.

The average is kept by one operation over all weights. After a warm-up, the loss is between quantiles whose weights a little
Python looks up from a table that gets finer twice in the training; every 40th step the averaged network is evaluated.
Nothing is wrong.
"""

import copy
from bisect import bisect_right

import torch
from ranks import Run
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

SENSED, TIMES, BATCH, WIDTH, DEPTH, EVERY, WARM = 12, 72, 20, 80, 4, 40, 20
STAGES = (0, 40, 80)
QUANTILES = ((0.5,), (0.25, 0.5, 0.75), (0.1, 0.3, 0.5, 0.7, 0.9))
MOST = 5


class Gated(nn.Module):
    """A residual layer along channels, with a gate, and a mix along time."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.time = nn.Linear(TIMES, TIMES)
        self.narrow = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, day: torch.Tensor) -> torch.Tensor:
        value, gate = self.wide(self.norm(day)).chunk(2, 2)
        gate = self.time(gate.transpose(1, 2)).transpose(1, 2)
        mixed: torch.Tensor = day + self.narrow(value * torch.sigmoid(gate))
        return mixed


class Sky(nn.Module):
    """A day of instruments in, quantiles of the cover out."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(SENSED, WIDTH)
        self.body = nn.Sequential(*(Gated() for _ in range(DEPTH)))
        self.cover = nn.Linear(WIDTH, MOST)

    def forward(self, day: torch.Tensor) -> torch.Tensor:
        cover: torch.Tensor = self.cover(self.body(self.enter(day)).mean(1))
        return cover


def pinball(cover: torch.Tensor, truth: torch.Tensor, step: int) -> torch.Tensor:
    """The loss of as many quantiles as this stage of the training has."""
    quantiles = QUANTILES[bisect_right(STAGES, step) - 1]
    error = truth[:, None] - cover[:, : len(quantiles)]
    levels = torch.tensor(quantiles)
    return torch.maximum(levels * error, (levels - 1) * error).mean()


def make_days(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Instruments, and the cover that two of them see."""
    dice = torch.Generator().manual_seed(seed)
    days = torch.randn(count, TIMES, SENSED, generator=dice)
    return days, torch.sigmoid(days[:, -12:, :2].sum((1, 2)) / 4)


def main() -> None:
    """Train."""
    run = Run()
    network = Sky()
    slow = copy.deepcopy(network).requires_grad_(requires_grad=False)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, fused=True)
    model, optimizer = run.wrap(network, optimizer)
    warm, cosine = LinearLR(optimizer, 0.1, total_iters=WARM), CosineAnnealingLR(optimizer, run.args.steps)
    schedule = SequentialLR(optimizer, [warm, cosine], [WARM])
    slow_weights: list[torch.Tensor] = [*slow.parameters()]
    weights: list[torch.Tensor] = [*network.parameters()]
    days, cover = make_days(20 * BATCH, run.rank)
    held_out, held_cover = make_days(2 * BATCH, 400 + run.rank)
    errors: list[float] = []
    for batch, truth in run.batches(list(zip(days.split(BATCH), cover.split(BATCH), strict=True))):
        optimizer.zero_grad()
        pinball(model(batch), truth, run.step).backward()
        nn.utils.clip_grad_norm_(weights, 1.0, foreach=True)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            torch._foreach_lerp_(slow_weights, weights, 0.02)
        if run.step % EVERY == 0:
            with torch.inference_mode():
                errors.append(float((slow(held_out)[:, 0] - held_cover).abs().mean()))
    if run.rank == 0:
        print(f"error {errors[0]:.3f} to {errors[-1]:.3f}")
    run.close()


main()
