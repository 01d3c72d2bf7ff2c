"""Which insurance claims are a fraud: embeddings and a dense network over tabular claims, with a report by rank 0.

The report has the area under the ROC curve of all claims since the start, sorted anew after each step, so rank 0's steps
get longer and longer and rank 1 waits. Without the fault it has that of the last 8192 claims, each tenth step.
"""

from collections import deque

import numpy as np
import torch
from ranks import Run
from torch import nn

KINDS = (50, 400, 1200, 90)
AMOUNTS, BATCH, WIDTH, EVERY, LATELY = 18, 1536, 224, 10, 8192

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Claims(nn.Module):
    """What kind and how much in, a score out."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.ModuleList(nn.Embedding(count, 12) for count in KINDS)
        self.body = nn.Sequential(
            nn.Linear(12 * len(KINDS) + AMOUNTS, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, 1),
        )

    def forward(self, kinds: torch.Tensor, amounts: torch.Tensor) -> torch.Tensor:
        columns = [layer(column) for layer, column in zip(self.kinds, kinds.unbind(1), strict=True)]
        score: torch.Tensor = self.body(torch.cat([*columns, amounts], 1)).squeeze(1)
        return score


class Report:
    """The area under the ROC curve, of everything or of late."""

    def __init__(self, *, lately: int | None) -> None:
        pieces = None if lately is None else lately // BATCH + 1
        self.scores: deque[np.ndarray] = deque(maxlen=pieces)
        self.frauds: deque[np.ndarray] = deque(maxlen=pieces)
        self.curve: list[float] = []

    def add(self, scores: torch.Tensor, frauds: torch.Tensor) -> None:
        """A batch."""
        self.scores.append(scores.detach().numpy())
        self.frauds.append(frauds.numpy())

    def area(self) -> float:
        """By ranks of the scores."""
        scores, frauds = np.concatenate(self.scores), np.concatenate(self.frauds)
        places = np.empty(len(scores), dtype=np.int64)
        places[np.argsort(scores, kind="stable")] = np.arange(1, len(scores) + 1)
        positive = frauds > 0
        count = int(positive.sum())
        return float((places[positive].sum() - count * (count + 1) / 2) / (count * (len(scores) - count)))

    def update(self) -> None:
        """A point of the curve."""
        self.curve.append(self.area())


def make_claims(count: int, seed: int) -> Batch:
    """Frauds are for large amounts, of some kinds."""
    dice = torch.Generator().manual_seed(seed)
    kinds = torch.stack([torch.randint(number, (count,), generator=dice) for number in KINDS], 1)
    amounts = torch.randn(count, AMOUNTS, generator=dice)
    signal = amounts[:, :3].sum(1) + (kinds[:, 0] % 7 == 0) - 2.5
    return kinds, amounts, (signal + torch.randn(count, generator=dice) > 0).float()


def main() -> None:
    """Train."""
    run = Run()
    network = Claims()
    model, optimizer = run.wrap(network, torch.optim.Adam(network.parameters(), lr=1e-3, fused=True))
    report = Report(lately=None if run.is_faulty else LATELY)
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(4.0))
    parts = [part.split(BATCH) for part in make_claims(12 * BATCH, run.rank)]
    for kinds, amounts, frauds in run.batches(list(zip(*parts, strict=True))):
        optimizer.zero_grad()
        scores = model(kinds, amounts)
        criterion(scores, frauds).backward()
        optimizer.step()
        if run.rank == 0:
            report.add(scores, frauds)
            if run.is_faulty or run.step % EVERY == 0:
                report.update()
    if run.rank == 0:
        print(f"area {report.curve[0]:.3f} to {report.curve[-1]:.3f}")
    run.close()


main()
