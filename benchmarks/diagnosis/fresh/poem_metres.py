"""The metre of poems, a transformer over syllables, sharded layer by layer (FSDP2).

The log has the norm of each parameter and of its gradient, and to compute them both are gathered whole on every rank, one after
the other, in every step.  Without the fault each rank squares its own shards, and the sums are added in one reduction.
"""

import torch
from ranks import Run
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

SYLLABLES, METRES, LENGTH, BATCH, WIDTH, DEPTH = 600, 8, 40, 8, 96, 3


class Metre(nn.Module):
    """Syllables in, the scores of the metres out."""

    def __init__(self) -> None:
        super().__init__()
        self.syllables = nn.Embedding(SYLLABLES, WIDTH)
        self.places = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 3 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(DEPTH)
        )
        self.metre = nn.Linear(WIDTH, METRES)

    def forward(self, poem: torch.Tensor) -> torch.Tensor:
        x = self.syllables(poem) + self.places
        for layer in self.layers:
            x = layer(x)
        scores: torch.Tensor = self.metre(x.mean(1))
        return scores


def norms_of_all(model: nn.Module) -> dict[str, float]:
    """Norms of parameters and gradients."""
    norms = {}
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        assert isinstance(parameter.grad, DTensor)
        norms[name] = float(parameter.full_tensor().detach().norm())
        norms[f"{name}.grad"] = float(parameter.grad.full_tensor().norm())
    return norms


def norms_of_shards(model: nn.Module) -> dict[str, float]:
    """The same, by way of the squares of this rank's shards."""
    names, shards = [], []
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        assert isinstance(parameter.grad, DTensor)
        names += [name, f"{name}.grad"]
        shards += [parameter.to_local().detach(), parameter.grad.to_local()]
    squares = torch.stack([shard.square().sum() for shard in shards])
    distributed.all_reduce(squares)
    return dict(zip(names, squares.sqrt().tolist(), strict=True))


def main() -> None:
    """Train."""
    run = Run()
    mesh = init_device_mesh("cpu", (run.size,))
    model = Metre()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dice = torch.Generator().manual_seed(run.rank)
    log = []
    for _ in run.batches(range(10_000)):
        metres = torch.randint(METRES, (BATCH,), generator=dice)
        poems = torch.randint(SYLLABLES, (BATCH, LENGTH), generator=dice)
        poems[:, ::4] = metres[:, None] * 70 + torch.arange(0, LENGTH, 4)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(poems), metres).backward()
        optimizer.step()
        log.append(norms_of_all(model) if run.is_faulty else norms_of_shards(model))
    run.close()


main()
