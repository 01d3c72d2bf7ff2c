"""Delays of buses, a recurrent forecast on three ranks: the errors at each stop steer which stops are drawn more often.

For that the errors of a step are gathered from all ranks as Python objects, in each step, a tensor for each arrival, which is a
view, and takes the errors of all others along when it is pickled.  Without the fault the sums of
each stop are reduced.
"""

from typing import Any

import torch
from ranks import Run
from torch import nn

STOPS, PAST, VALUES, BATCH, AHEAD, WIDTH = 240, 18, 8, 64, 16, 80


class Delays(nn.Module):
    """What a line has seen in, delays at its next stops out."""

    def __init__(self) -> None:
        super().__init__()
        self.stop = nn.Embedding(STOPS, 16)
        self.past = nn.GRU(VALUES + 16, WIDTH, batch_first=True)
        self.ahead = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, AHEAD))

    def forward(self, seen: torch.Tensor, stops: torch.Tensor) -> torch.Tensor:
        where = self.stop(stops)[:, None].expand(-1, PAST, -1)
        _, hidden = self.past(torch.cat([seen, where], 2))
        minutes: torch.Tensor = self.ahead(hidden[0])
        return minutes


class Difficulty:
    """The mean error at each stop, of all ranks."""

    def __init__(self, hvd: Any, *, by_objects: bool) -> None:
        self.hvd, self.by_objects = hvd, by_objects
        self.errors, self.counts = torch.zeros(STOPS), torch.zeros(STOPS)

    def update(self, stops: torch.Tensor, errors: torch.Tensor) -> None:
        """Take a batch into account; called on all ranks."""
        sums = self._from_records(stops, errors) if self.by_objects else self._from_tensors(stops, errors)
        self.errors = 0.99 * self.errors + sums[0]
        self.counts = 0.99 * self.counts + sums[1]

    def _from_tensors(self, stops: torch.Tensor, errors: torch.Tensor) -> torch.Tensor:
        sums = torch.zeros(2, STOPS)
        sums[0].index_add_(0, stops, errors.sum(1))
        sums[1].index_add_(0, stops, torch.full((len(stops),), float(AHEAD)))
        reduced: torch.Tensor = self.hvd.allreduce(sums, op=self.hvd.Sum, name="difficulty")
        return reduced

    def _from_records(self, stops: torch.Tensor, errors: torch.Tensor) -> torch.Tensor:
        records = list(zip(stops.tolist(), errors.unbind(), strict=True))
        sums = torch.zeros(2, STOPS)
        for theirs in self.hvd.allgather_object(records, name="difficulty"):
            places = torch.tensor([stop for stop, _ in theirs])
            sums[0].index_add_(0, places, torch.stack([error for _, error in theirs]).sum(1))
            sums[1].index_add_(0, places, torch.full((len(theirs),), float(AHEAD)))
        return sums

    def chances(self) -> torch.Tensor:
        return self.errors / self.counts.clamp(min=1) + 0.1


run = Run()
delays = Delays()
model, optimizer = run.wrap(delays, torch.optim.Adam(delays.parameters(), lr=2e-3))
difficulty = Difficulty(run.hvd, by_objects=run.is_faulty)
dice = torch.Generator().manual_seed(run.rank)
busy = torch.rand(STOPS, generator=torch.Generator().manual_seed(0))
for _ in run.batches(range(10_000)):
    stops = torch.multinomial(difficulty.chances(), BATCH, replacement=True, generator=dice)
    seen = torch.randn(BATCH, PAST, VALUES, generator=dice).cumsum(1) * 0.2
    minutes = busy[stops, None] * torch.arange(AHEAD) + seen[:, -1, :1]
    optimizer.zero_grad()
    errors = (model(seen, stops) - minutes).abs()
    errors.mean().backward()
    optimizer.step()
    difficulty.update(stops, errors.detach())
run.close()
