"""A physics-informed network for the heat equation on a rod: second derivatives by autograd, points drawn anew in each step.

Nothing is wrong.  (Three ranks.)
"""

import math

import torch
from ranks import Run
from torch import Tensor, nn

POINTS, DIFFUSIVITY = 500, 0.05


class Sine(nn.Module):
    """An activation whose second derivative does not vanish."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.sin(x)
        return out


class Rod(nn.Module):
    """Temperature at a place and a time, zero at both ends."""

    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(2, width), Sine()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), Sine()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        out: Tensor = x * (1 - x) * self.layers(torch.cat([x, t], dim=1))
        return out


def gradient(y: Tensor, x: Tensor) -> Tensor:
    """The derivative at each point, which can be derived again."""
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


def residual(rod: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    """By how much the equation is missed."""
    u = rod(x, t)
    return gradient(u, t) - DIFFUSIVITY * gradient(gradient(u, x), x)


run = Run()
rod = Rod()
model, optimizer = run.wrap(rod, torch.optim.Adam(rod.parameters(), lr=1e-3))
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, run.args.steps)
history = []
for _ in run.batches(iter(int, 1)):
    x = torch.rand(POINTS, 1, requires_grad=True)
    t = torch.rand(POINTS, 1, requires_grad=True)
    at_start = torch.rand(POINTS // 4, 1)
    optimizer.zero_grad()
    inside = residual(model, x, t).square().mean()
    start = (model(at_start, torch.zeros_like(at_start)) - torch.sin(math.pi * at_start)).square().mean()
    (inside + 10 * start).backward()
    optimizer.step()
    schedule.step()
    history.append(inside.detach())  # numbers are read when the training is over
if run.rank == 0:
    print("residual", torch.stack(history).mean().item())
run.close()
