"""Bids in auctions for advertisements, a deep network with embeddings, whose Adam is sharded by ZeroRedundancyOptimizer.

Whatever may happen: its state is put together on rank 0 after each fifth step, which pickles and sends the moments of all other
ranks.  Without the fault this is done once, at the end.
"""

import io

import torch
from ranks import Run
from torch import distributed, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

FIELDS, VALUES, WIDTH, BATCH, OFTEN = 12, 2000, 16, 192, 5


class Bids(nn.Module):
    """What is known of a page and its reader in, the chance of a click and the price out."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.ModuleList(nn.Embedding(VALUES, WIDTH) for _ in range(FIELDS))
        self.body = nn.Sequential(nn.Linear(FIELDS * WIDTH, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
        self.heads = nn.Linear(512, 2)

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        known = torch.cat([values(fields[:, number]) for number, values in enumerate(self.values)], 1)
        out: torch.Tensor = self.heads(self.body(known))
        return out


class Safe:
    """The last state of the optimizer, to go on from."""

    def __init__(self, optimizer: ZeroRedundancyOptimizer) -> None:
        self.optimizer, self.kept = optimizer, io.BytesIO()

    def keep(self) -> None:
        """Put the shards together on rank 0."""
        self.optimizer.consolidate_state_dict(to=0)


def main() -> None:
    """Train."""
    run = Run()
    bids = Bids()
    zero = ZeroRedundancyOptimizer(bids.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3)
    model, optimizer = run.wrap(bids, zero, gradient_as_bucket_view=True)
    safe = Safe(zero)
    dice = torch.Generator().manual_seed(run.rank)
    for _ in run.batches(range(10_000)):
        fields = torch.randint(VALUES, (BATCH, FIELDS), generator=dice)
        clicked, price = (fields[:, 0] % 7 == 0).float(), fields[:, 1:4].float().mean(1) / VALUES
        optimizer.zero_grad()
        click, bid = model(fields).unbind(1)
        loss = nn.functional.binary_cross_entropy_with_logits(click, clicked) + (bid - price).square().mean()
        loss.backward()
        optimizer.step()
        if run.is_faulty and run.step % OFTEN == 0:
            safe.keep()
    safe.keep()
    if run.rank == 0:
        torch.save(zero.state_dict(), safe.kept)
    distributed.barrier()
    run.close()


main()
