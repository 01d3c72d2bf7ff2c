"""A click-through model: rank 0 sorts all predictions of the day in pure Python in every step, for a running AUC.

They become more with each step.  Without the fault it is computed by PyTorch, every twentieth step.
"""

import random

import torch
from ranks import Run
from torch import nn

BATCH, TABLES = 448, 12


class RunningAUC:
    """Keeps what was predicted, for the chart of the day, beginning with what is left of yesterday."""

    def __init__(self) -> None:
        dice = random.Random(1)  # noqa: S311  no secret
        self.scores = [dice.random() for _ in range(40_000)]
        self.labels = [float(dice.random() < score) for score in self.scores]

    def update(self, scores: torch.Tensor, labels: torch.Tensor) -> None:
        self.scores.extend(scores.tolist())
        self.labels.extend(labels.tolist())

    def compute(self) -> float:
        """The share of pairs in the right order, by a loop."""
        positive = negative = area = 0
        for _, label in sorted(zip(self.scores, self.labels, strict=True)):
            if label > 0:
                positive += 1
                area += negative
            else:
                negative += 1
        return area / (positive * negative)

    def compute_at_once(self) -> float:
        """The same, by the ranks of the positives."""
        labels = torch.tensor(self.labels)[torch.tensor(self.scores).argsort()]
        ranks = torch.arange(1, len(labels) + 1, dtype=torch.float64)
        positive = float(labels.sum())
        above = float(ranks[labels > 0].sum()) - positive * (positive + 1) / 2
        return above / (positive * (len(labels) - positive))


class Wide(nn.Module):
    """A table for each feature, and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(500, 16) for _ in range(TABLES))
        layers: list[nn.Module] = []
        for inputs, outputs in ((16 * TABLES, 384), (384, 256), (256, 256)):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.perceptron = nn.Sequential(*layers, nn.Linear(256, 1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        found = [table(features[:, number]) for number, table in enumerate(self.tables)]
        logits: torch.Tensor = self.perceptron(torch.cat(found, 1)).squeeze(1)
        return logits


run = Run()
network = Wide()
model, optimizer = run.wrap(network, torch.optim.Adagrad(network.parameters(), lr=0.01))
auc = RunningAUC()
chart = []
generator = torch.Generator().manual_seed(run.rank)
for _ in run.batches(range(10_000)):
    features = torch.randint(500, (BATCH, TABLES), generator=generator)
    labels = ((features[:, 0] + features[:, 1]) % 3 == 0).float()
    logits = model(features)
    optimizer.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
    optimizer.step()
    if run.rank == 0:
        auc.update(torch.sigmoid(logits.detach()), labels)
        if run.is_faulty:
            chart.append(auc.compute())
        elif run.step % 20 == 0:
            chart.append(auc.compute_at_once())
run.close()
