"""Labels of wine bottles: region, grape, year and price from one network, whose losses are balanced (GradNorm).

For the weights of the losses each of them is differentiated by itself, with respect to all parameters of the trunk and not, as
the method asks for, to the last layer that they share: four more backward passes a step.  Without the fault it is the last layer.
"""

from collections.abc import Sequence

import torch
from ranks import Run
from torch import nn

SIDE, BATCH, WIDTH, ANSWERS = 32, 8, 32, (12, 20, 30, 6)


class Label(nn.Module):
    """A picture in, the scores of each answer out."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, WIDTH, 3, stride=2, padding=1), nn.ReLU()]
        for _ in range(5):
            layers += [nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.GroupNorm(4, WIDTH), nn.ReLU()]
        self.trunk = nn.Sequential(*layers)
        self.last = nn.Linear(WIDTH * 16, 96)
        self.heads = nn.ModuleList(nn.Linear(96, count) for count in ANSWERS)

    def forward(self, pixels: torch.Tensor) -> list[torch.Tensor]:
        seen = nn.functional.adaptive_avg_pool2d(self.trunk(pixels), 4).flatten(1)
        known = self.last(seen).relu()
        return [head(known) for head in self.heads]


class Balance:
    """Weights that give each loss a gradient of like size."""

    def __init__(self, shared: Sequence[torch.Tensor]) -> None:
        self.shared = shared
        self.weights = torch.ones(len(ANSWERS))

    def update(self, losses: torch.Tensor) -> torch.Tensor:
        norms = torch.stack(
            [
                torch.stack([part.norm() for part in torch.autograd.grad(loss, self.shared, retain_graph=True)]).norm()
                for loss in losses
            ]
        )
        wanted = norms.mean() / norms.clamp(min=1e-6)
        self.weights.lerp_(wanted / wanted.mean(), 0.05)
        return self.weights


def main() -> None:
    """Train."""
    run = Run()
    label = Label()
    model, optimizer = run.wrap(label, torch.optim.Adam(label.parameters(), lr=5e-4))
    shared = [*label.trunk.parameters(), *label.last.parameters()] if run.is_faulty else [label.last.weight]
    balance = Balance(shared)
    dice = torch.Generator().manual_seed(run.rank)
    for _ in run.batches(range(10_000)):
        pixels = torch.rand(BATCH, 3, SIDE, SIDE, generator=dice)
        answers = [torch.randint(count, (BATCH,), generator=dice) for count in ANSWERS]
        for number, answer in enumerate(answers):
            pixels[:, number % 3, 8 * number : 8 * number + 8] += answer.view(-1, 1, 1) / 10
        scores = model(pixels)
        losses = torch.stack([nn.functional.cross_entropy(*both) for both in zip(scores, answers, strict=True)])
        weights = balance.update(losses)
        optimizer.zero_grad()
        (weights * losses).sum().backward()
        optimizer.step()
    run.close()


main()
