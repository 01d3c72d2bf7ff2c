"""How late a ferry will be, from its positions so far: a two-layer LSTM over voyages of very different length.

All ranks sort the same log of voyages by length and take every other one, so a batch holds voyages of about one length, and
that length is about the same on all ranks at each step; the batches come in an order that all ranks shuffle alike. Steps
differ by a factor of three, ranks do not. Nothing is wrong.
"""

import torch
from ranks import Run
from torch import nn

READINGS, WIDTH, BATCH, VOYAGES = 7, 80, 24, 2400
SHORTEST, LONGEST = 14, 56

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Delay(nn.Module):
    """Padded positions and their mask in, hours out."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(READINGS, WIDTH, num_layers=2, batch_first=True)
        self.hours = nn.Linear(WIDTH, 1)

    def forward(self, positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states, _ = self.memory(positions)
        pooled = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        hours: torch.Tensor = self.hours(pooled).squeeze(1)
        return hours


def lengths_of_all() -> torch.Tensor:
    """How long each voyage of the log is, sorted; many are short."""
    dice = torch.Generator().manual_seed(1)
    spread = torch.rand(VOYAGES, generator=dice).square()
    return (SHORTEST + spread * (LONGEST - SHORTEST)).long().sort().values


def make_batches(rank: int, size: int) -> list[Batch]:
    """This rank's voyages, batched with their like, in the order of the epoch."""
    dice = torch.Generator().manual_seed(50 + rank)
    batches: list[Batch] = []
    for lengths in lengths_of_all()[rank::size].split(BATCH):
        longest = int(lengths.max())
        mask = (torch.arange(longest) < lengths[:, None]).float()
        positions = torch.randn(len(lengths), longest, READINGS, generator=dice) * mask[:, :, None]
        batches.append((positions, mask, positions[:, :, 0].sum(1) / 4))
    order = torch.randperm(len(batches), generator=torch.Generator().manual_seed(2))
    return [batches[int(index)] for index in order]


def main() -> None:
    """Train."""
    run = Run()
    network = Delay()
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, fused=True)
    model, optimizer = run.wrap(network, optimizer, gradient_as_bucket_view=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=run.args.steps + 1)
    total = torch.zeros(())
    for positions, mask, hours in run.batches(make_batches(run.rank, run.size)):
        optimizer.zero_grad()
        loss = nn.functional.smooth_l1_loss(model(positions, mask), hours)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0, foreach=True)
        optimizer.step()
        schedule.step()
        total += loss.detach()
    if run.rank == 0:
        print(f"mean loss {float(total) / run.step:.3f}")
    run.close()


main()
