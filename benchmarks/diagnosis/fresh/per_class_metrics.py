"""Metrics of each class, averaged over the ranks in every step: 21 blocking reductions of a number each, one after the other.

Without the fault they are one tensor and one reduction.
"""

import torch
from ranks import Run
from torch import nn

CLASSES, BATCH = 20, 6


class Metric:
    """The one of Horovod's examples."""

    def __init__(self, name: str) -> None:
        self.name, self.total, self.count = name, torch.tensor(0.0), 0

    def update(self, value: torch.Tensor) -> None:
        self.total = self.total + run.hvd.allreduce(value.detach(), name=self.name)
        self.count += 1


run = Run()
layers: list[nn.Module] = []
for inputs, outputs, stride in ((3, 16, 1), (16, 32, 2), (32, 48, 1)):
    layers += [nn.Conv2d(inputs, outputs, 3, stride, padding=1), nn.ReLU()]
network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(192, CLASSES))
model, optimizer = run.wrap(network, torch.optim.SGD(network.parameters(), lr=0.05))
metrics = [*(Metric(f"recall_{number}") for number in range(CLASSES)), Metric("loss")]
all_metrics = Metric("all")
generator = torch.Generator().manual_seed(run.rank)
for _ in run.batches(range(10_000)):
    images = torch.randn(BATCH, 3, 48, 48, generator=generator)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    optimizer.zero_grad()
    scores = model(images)
    loss = nn.functional.cross_entropy(scores, labels)
    loss.backward()
    optimizer.step()
    hits = (scores.argmax(1) == labels).float()
    of_class = [labels == number for number in range(CLASSES)]
    values = [*((hits * mine).sum() / mine.sum().clamp(min=1) for mine in of_class), loss]
    if run.is_faulty:
        for metric, value in zip(metrics, values, strict=True):
            metric.update(value)
    else:
        all_metrics.update(torch.stack(values))
run.close()
