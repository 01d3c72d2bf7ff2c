"""The outcome of cases from their briefs, a transformer sharded by FSDP2, briefs of one length in a batch, the same on all ranks.

Gradients of two micro-batches are added before they are scattered, and weights stay whole between forward and backward pass
(reshard_after_forward=False); lengths differ up to five times.  Nothing is wrong.
"""

import torch
from ranks import Run
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

WORDS, OUTCOMES, BATCH, WIDTH, DEPTH, MICRO = 1500, 5, 5, 112, 3, 2


class Outcome(nn.Module):
    """Words in, the scores of the outcomes out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True) for _ in range(DEPTH)
        )
        self.outcome = nn.Linear(WIDTH, OUTCOMES)

    def forward(self, brief: torch.Tensor) -> torch.Tensor:
        x = self.words(brief)
        for layer in self.layers:
            x = layer(x)
        scores: torch.Tensor = self.outcome(x.mean(1))
        return scores


def main() -> None:
    """Train."""
    run = Run()
    mesh = init_device_mesh("cpu", (run.size,))
    model = Outcome()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    assert isinstance(model, FSDPModule)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    alike, dice = torch.Generator().manual_seed(17), torch.Generator().manual_seed(run.rank)
    for _ in run.batches(range(10_000)):
        length = 16 * int(torch.randint(1, 6, (), generator=alike))
        optimizer.zero_grad()
        for micro in range(MICRO):
            model.set_requires_gradient_sync(micro + 1 == MICRO)
            briefs = torch.randint(WORDS, (BATCH, length), generator=dice)
            loss = nn.functional.cross_entropy(model(briefs), briefs[:, 0] % OUTCOMES)
            (loss / MICRO).backward()
        optimizer.step()
    run.close()


main()
