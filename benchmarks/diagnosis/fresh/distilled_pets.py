"""A small network learns the breeds of pets from a larger one, which is on rank 0 alone.

It computes everyone's targets in each step.  They are broadcast, and the three other ranks wait.  Without the fault the
targets, which never change, are computed once.
"""

import torch
from ranks import Run
from torch import nn

BREEDS, BATCH, BATCHES, SIDE = 24, 8, 20, 32


def convnet(width: int, depth: int) -> nn.Sequential:
    """Of any size."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, stride=2, padding=1), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, BREEDS))


class Teacher:
    """What it thinks of pictures; all ranks see the same, and take their part of it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.network = convnet(40, 3).eval() if run.rank == 0 else None

    @torch.no_grad()
    def targets(self, everyones: torch.Tensor) -> torch.Tensor:
        """Logits for the global batch."""
        logits = torch.zeros(len(everyones), BREEDS) if self.network is None else self.network(everyones)
        sent: torch.Tensor = self.run.hvd.broadcast(logits, root_rank=0, name="teacher")
        return sent


def main() -> None:
    """The training."""
    run = Run()
    student = convnet(20, 4)
    model, optimizer = run.wrap(student, torch.optim.SGD(student.parameters(), lr=0.02, momentum=0.9))
    teacher = Teacher(run)
    pets = torch.randn(BATCHES, run.size * BATCH, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(80))
    stored = None if run.is_faulty else [teacher.targets(pictures) for pictures in pets]
    mine = slice(run.rank * BATCH, (run.rank + 1) * BATCH)
    for number in run.batches(range(BATCHES)):
        targets = teacher.targets(pets[number]) if stored is None else stored[number]
        optimizer.zero_grad()
        scores = model(pets[number, mine])
        loss = nn.functional.kl_div((scores / 2).log_softmax(1), (targets[mine] / 2).softmax(1), reduction="batchmean")
        loss.backward()
        optimizer.step()
    run.close()


main()
