"""Frauds among card payments, a wide and deep network on a table: the area under the ROC curve is kept up to date.

It is computed exactly, from the scores of all payments so far, after each batch, so it takes longer and longer.  Without the
fault the scores are counted in bins.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from ranks import Run
from scipy.stats import rankdata
from torch import nn

KINDS, LEVELS, AMOUNTS, BATCH, WIDTH = 14, 400, 20, 1536, 128


@dataclass
class ExactCurve:
    """Mann and Whitney's statistic of everything that was scored."""

    scores: list[np.ndarray] = field(default_factory=list)
    labels: list[np.ndarray] = field(default_factory=list)

    def update(self, scores: np.ndarray, labels: np.ndarray) -> float:
        self.scores.append(scores)
        self.labels.append(labels)
        is_fraud = np.concatenate(self.labels) > 0
        ranks = rankdata(np.concatenate(self.scores))
        frauds = int(is_fraud.sum())
        return float((ranks[is_fraud].sum() - frauds * (frauds + 1) / 2) / (frauds * (len(ranks) - frauds)))


class BinnedCurve:
    """The same from two histograms."""

    def __init__(self, bins: int = 512) -> None:
        self.counts = np.zeros((2, bins))

    def update(self, scores: np.ndarray, labels: np.ndarray) -> float:
        places = (scores * (self.counts.shape[1] - 1)).astype(int)
        for kind in (0, 1):
            self.counts[kind] += np.bincount(places[labels == kind], minlength=self.counts.shape[1])
        below = self.counts[0].cumsum() - self.counts[0] / 2
        return float((self.counts[1] * below).sum() / self.counts.sum(1).prod())


class WideAndDeep(nn.Module):
    """A linear part for what is known by heart, and layers for what is not."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.EmbeddingBag(KINDS * LEVELS, 1, mode="sum")
        self.vectors = nn.Embedding(KINDS * LEVELS, 16)
        self.deep = nn.Sequential(
            nn.Linear(KINDS * 16 + AMOUNTS, WIDTH),
            nn.BatchNorm1d(WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, 1),
        )

    def forward(self, kinds: torch.Tensor, amounts: torch.Tensor) -> torch.Tensor:
        deep = self.deep(torch.cat([self.vectors(kinds).flatten(1), amounts], 1))
        logits: torch.Tensor = (self.wide(kinds) + deep).squeeze(1)
        return logits


def payments(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A table of them: kinds, amounts, and whether it was fraud."""
    dice = torch.Generator().manual_seed(seed)
    count = 40 * BATCH
    kinds = torch.randint(LEVELS, (count, KINDS), generator=dice)
    amounts = torch.randn(count, AMOUNTS, generator=dice)
    odd = (kinds[:, 0] % 17 == 0).float() + amounts[:, 3] - amounts[:, 5] + torch.randn(count, generator=dice)
    return kinds + LEVELS * torch.arange(KINDS), amounts, (odd > 2.5).float()


def main() -> None:
    """The training."""
    run = Run()
    net = WideAndDeep()
    model, optimizer = run.wrap(net, torch.optim.Adam(net.parameters(), lr=1e-3))
    curve = ExactCurve() if run.is_faulty else BinnedCurve()
    table = torch.utils.data.TensorDataset(*payments(run.rank))
    loader = torch.utils.data.DataLoader(
        table,
        sampler=torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(table), BATCH, drop_last=True),
        batch_size=None,
    )
    area = 0.5
    for kinds, amounts, frauds in run.batches(loader):
        optimizer.zero_grad()
        logits = model(kinds, amounts)
        nn.functional.binary_cross_entropy_with_logits(logits, frauds).backward()
        optimizer.step()
        area = curve.update(logits.detach().sigmoid().numpy(), frauds.numpy())
    if run.rank == 0:
        print(f"area {area:.3f}")
    run.close()


if __name__ == "__main__":
    main()
