"""Point clouds to shapes, by small layers shared by all points: DistributedDataParallel's buckets were set to 0.01 MB.

They should overlap better with backward, and each block's gradient is reduced on its own, 35 collectives a step.  Without
the fault the buckets are as large as by default.
"""

import torch
from ranks import Run
from torch import nn

SHAPES, CLOUDS, POINTS, WIDTH, DEPTH = 10, 8, 96, 48, 34


class Residual(nn.Module):
    """One layer for all points, and what the cloud has in common."""

    def __init__(self) -> None:
        super().__init__()
        self.point, self.cloud = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + torch.relu(self.point(x) + self.cloud(x.amax(1, keepdim=True)))
        return out * 0.9


class PointNet(nn.Module):
    """Points in, scores of shapes out."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(3, WIDTH)
        self.body = nn.Sequential(*(Residual() for _ in range(DEPTH)))
        self.shape = nn.Linear(WIDTH, SHAPES)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.shape(self.body(self.lift(points)).amax(1))
        return scores


def augmented(points: torch.Tensor, dice: torch.Generator) -> torch.Tensor:
    """Turned about the vertical axis, and jittered."""
    angles = torch.rand(len(points), generator=dice) * 6.2832
    cos, sin, zero, one = angles.cos(), angles.sin(), torch.zeros_like(angles), torch.ones_like(angles)
    turn = torch.stack([cos, -sin, zero, sin, cos, zero, zero, zero, one], 1).view(-1, 3, 3)
    return points @ turn + 0.01 * torch.randn(points.shape, generator=dice)


run = Run()
network = PointNet()
settings = {"bucket_cap_mb": 0.01} if run.is_faulty else {}
model, optimizer = run.wrap(network, torch.optim.AdamW(network.parameters(), lr=1e-3), **settings)
dice = torch.Generator().manual_seed(90 + run.rank)
clouds = torch.randn(64, CLOUDS, POINTS, 3, generator=dice)
for points in run.batches(clouds):
    shapes = torch.randint(SHAPES, (CLOUDS,), generator=dice)
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(model(augmented(points, dice)), shapes, label_smoothing=0.1)
    loss.backward()
    optimizer.step()
run.close()
