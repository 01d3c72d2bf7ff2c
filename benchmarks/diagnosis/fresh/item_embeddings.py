"""A recommender with two towers: the gradient of its items is dense, 5 MB, though a step reads a thousand of 40,000 rows.

Without the fault the embedding is sparse.
"""

import torch
from ranks import Run
from torch import nn

ITEMS, WIDTH, BATCH = 40_000, 32, 512


class Towers(nn.Module):
    """How much better a user likes one item than another."""

    def __init__(self, *, is_sparse: bool) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH, sparse=is_sparse)
        layers = [nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
        self.user = nn.Sequential(*layers, nn.Linear(512, WIDTH))

    def forward(self, user: torch.Tensor, item: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        better: torch.Tensor = ((self.items(item) - self.items(other)) * self.user(user)).sum(1)
        return better


run = Run()
towers = Towers(is_sparse=not run.is_faulty)
model, optimizer = run.wrap(towers, torch.optim.SGD(towers.parameters(), lr=0.05))
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
generator = torch.Generator().manual_seed(run.rank)
for _ in run.batches(range(10_000)):
    users = torch.randn(BATCH, 64, generator=generator)
    items, others = torch.randint(ITEMS, (2, BATCH), generator=generator)
    optimizer.zero_grad()
    nn.functional.softplus(-model(users, items, others)).mean().backward()
    optimizer.step()
    schedule.step()
run.close()
