"""A residual network whose steps are computation above all, with an evaluation at the end.

Nothing is wrong.
"""

import torch
from ranks import Run
from torch import distributed, nn


class Block(nn.Module):
    """Two convolutions, and what went in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.GroupNorm(4, width))
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.GroupNorm(4, width))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(images + self.second(nn.functional.relu(self.first(images))))


def augmented(images: torch.Tensor) -> torch.Tensor:
    if torch.rand((), generator=generator) < 0.5:
        images = images.flip(3)
    return images + 0.05 * torch.randn(images.shape, generator=generator)


@torch.no_grad()
def evaluate(network: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of right answers, of all ranks."""
    network.eval()
    right = (network(images).argmax(1) == labels).float().mean()
    distributed.all_reduce(right)
    return float(right) / run.size


run = Run()
generator = torch.Generator().manual_seed(run.rank)
images = torch.randn(1024, 3, 16, 16, generator=generator)
labels = torch.randint(10, (1024,), generator=generator)
parts = [nn.Conv2d(3, 32, 3, padding=1), Block(32), Block(32), nn.Conv2d(32, 64, 3, 2, 1), Block(64)]
network = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
descent = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, foreach=True)
model, optimizer = run.wrap(network, descent, gradient_as_bucket_view=True, bucket_cap_mb=1)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=run.args.steps)
for _ in run.batches(range(10_000)):
    picked = torch.randint(1024, (16,), generator=generator)
    loss = nn.functional.cross_entropy(model(augmented(images[picked])), labels[picked], label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
print("accuracy", evaluate(network, images[:64], labels[:64]))
run.close()
