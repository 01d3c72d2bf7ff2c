"""Strokes of a brush by two networks that work against each other, each with an optimizer of its own.

The judge learns from a batch of made and real strokes with a gradient penalty in each step, the painter in every second one, so
steps are short and long in turn, on all ranks alike.  Nothing is wrong.
"""

from functools import partial

import torch
from ranks import Run
from torch import nn

POINTS, NOISE, BATCH, WIDTH = 64, 24, 24, 48


def make_painter() -> nn.Sequential:
    """Noise in, a stroke out: x, y and pressure along the line."""
    return nn.Sequential(
        nn.Linear(NOISE, WIDTH * POINTS // 4),
        nn.Unflatten(1, (WIDTH, POINTS // 4)),
        nn.LeakyReLU(0.2),
        nn.ConvTranspose1d(WIDTH, WIDTH, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.ConvTranspose1d(WIDTH, WIDTH, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv1d(WIDTH, 3, 5, padding=2),
    )


def make_judge() -> nn.Sequential:
    """A stroke in, how real it is out."""
    layers: list[nn.Module] = [nn.Conv1d(3, WIDTH, 5, padding=2), nn.LeakyReLU(0.2)]
    for _ in range(3):
        layers += [nn.Conv1d(WIDTH, WIDTH, 5, stride=2, padding=2), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(WIDTH * POINTS // 8, 1))


def penalty(judge: nn.Module, real: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """How far the judge's slope is from one, between what is real and what is made."""
    share = torch.rand(len(real), 1, 1)
    between = (share * real + (1 - share) * made).requires_grad_()
    (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
    far: torch.Tensor = (slope.flatten(1).norm(dim=1) - 1).square().mean()
    return far


def main() -> None:
    """Train both."""
    run = Run()
    torch.manual_seed(run.rank)
    painter, judge = make_painter(), make_judge()
    adam = partial(torch.optim.Adam, lr=1e-4, betas=(0.0, 0.9))
    painter_model, painter_optimizer = run.wrap(painter, adam(painter.parameters()))
    judge_model, judge_optimizer = run.wrap(judge, adam(judge.parameters()))
    for _ in run.batches(range(10_000)):
        real = torch.randn(BATCH, 3, POINTS).cumsum(2) / 8
        with torch.no_grad():
            made = painter_model(torch.randn(BATCH, NOISE))
        judge_optimizer.zero_grad()
        loss = judge_model(made).mean() - judge_model(real).mean() + 10 * penalty(judge_model, real, made)
        loss.backward()
        judge_optimizer.step()
        if run.step % 2 == 0:
            judge.requires_grad_(requires_grad=False)  # its gradients are not for the painter's step
            painter_optimizer.zero_grad()
            (-judge_model(painter_model(torch.randn(BATCH, NOISE))).mean()).backward()
            painter_optimizer.step()
            judge.requires_grad_(requires_grad=True)
    run.close()


main()
