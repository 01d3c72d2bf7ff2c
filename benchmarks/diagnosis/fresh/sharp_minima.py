"""Sharpness-aware minimization of a mixer on small pictures: two passes a step, and only the second is reduced.

Nothing is wrong.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from ranks import Run
from torch import nn

PATCHES, DIM = 64, 64


class Mixer(nn.Module):
    """Across patches, then across channels."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Sequential(nn.LayerNorm(PATCHES), nn.Linear(PATCHES, 64), nn.GELU(), nn.Linear(64, PATCHES))
        self.channels = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 128), nn.GELU(), nn.Linear(128, DIM))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(x.transpose(1, 2)).transpose(1, 2)
        out: torch.Tensor = x + self.channels(x)
        return out


class Classifier(nn.Module):
    """Pictures in, classes out."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, DIM, 4, stride=4)
        self.mixers = nn.Sequential(*(Mixer() for _ in range(depth)))
        self.classes = nn.Linear(DIM, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.classes(self.mixers(self.patches(x).flatten(2).transpose(1, 2)).mean(1))
        return out


@contextmanager
def at_the_worst_point_nearby(parameters: list[torch.Tensor], rho: float = 0.05) -> Iterator[None]:
    """Moves uphill along the gradient, and back again."""
    with torch.no_grad():
        gradients = [p.grad for p in parameters if p.grad is not None]
        norms = torch._foreach_norm(gradients)  # noqa: SLF001  as torch's optimizers do
        norm = torch.linalg.vector_norm(torch.stack(norms))
        moves = torch._foreach_mul(gradients, rho / (norm + 1e-12))  # noqa: SLF001  as torch's optimizers do
        torch._foreach_add_(parameters, moves)
    yield
    with torch.no_grad():
        torch._foreach_sub_(parameters, moves)


run = Run()
classifier = Classifier()
model, optimizer = run.wrap(classifier, torch.optim.SGD(classifier.parameters(), lr=0.05, momentum=0.9, foreach=True))
parameters: list[torch.Tensor] = list(classifier.parameters())
pictures = torch.randn(20, 16, 3, 32, 32, generator=torch.Generator().manual_seed(run.rank))
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
for x in run.batches(pictures):
    y = (x[:, 0, 0, :10]).argmax(1)
    optimizer.zero_grad()
    with model.no_sync():  # type: ignore[operator]
        criterion(model(x), y).backward()
    with at_the_worst_point_nearby(parameters):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
    optimizer.step()
run.close()
