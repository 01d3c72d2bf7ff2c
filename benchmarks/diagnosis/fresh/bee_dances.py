"""Dances of bees without labels, three ranks under DistributedDataParallel: features are drawn to prototypes (DeepCluster).

After each twelfth step rank 0 alone finds new prototypes, by 25 rounds of k-means that begin at random, and the others wait for
them in the broadcast.  Without the fault they begin where the last ones were, and a round is enough.
"""

import torch
from ranks import Run
from torch import distributed, nn

LENGTH, BATCH, WIDTH, KEPT, PROTOTYPES, OFTEN = 48, 16, 64, 6144, 96, 12


class Dance(nn.Module):
    """A path over the comb in, features out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(3, WIDTH, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(WIDTH, WIDTH, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(WIDTH, WIDTH, 5, padding=2),
            nn.ReLU(),
        )
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, path: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(self.out(self.body(path).mean(2)), dim=1)


def cluster(features: torch.Tensor, centres: torch.Tensor, rounds: int) -> torch.Tensor:
    """k-means."""
    for _ in range(rounds):
        nearest = torch.cdist(features, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, features)
        counts = torch.bincount(nearest, minlength=len(centres)).clamp(min=1)
        centres = sums / counts[:, None]
    return nn.functional.normalize(centres, dim=1)


def main() -> None:
    """Train."""
    run = Run()
    dance = Dance()
    model, optimizer = run.wrap(dance, torch.optim.SGD(dance.parameters(), lr=0.05, momentum=0.9))
    dice = torch.Generator().manual_seed(run.rank)
    bank = nn.functional.normalize(torch.randn(KEPT, WIDTH, generator=dice), dim=1)
    prototypes = nn.functional.normalize(torch.randn(PROTOTYPES, WIDTH, generator=dice), dim=1)
    distributed.broadcast(prototypes, 0)
    for step in run.batches(range(10_000)):
        paths = torch.randn(BATCH, 3, LENGTH, generator=dice).cumsum(2) / 5
        features = model(paths)
        scores = features @ prototypes.T / 0.1
        optimizer.zero_grad()
        nn.functional.cross_entropy(scores, scores.detach().argmax(1)).backward()
        optimizer.step()
        place = step * BATCH % (KEPT - BATCH)
        bank[place : place + BATCH] = features.detach()
        if run.step % OFTEN == 0:
            if run.rank == 0:
                first = bank[torch.randperm(KEPT, generator=dice)[:PROTOTYPES]] if run.is_faulty else prototypes
                prototypes = cluster(bank, first, 25 if run.is_faulty else 1)
            distributed.broadcast(prototypes, 0)
    run.close()


main()
