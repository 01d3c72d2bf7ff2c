"""Which fields of a tax form contradict each other: a transformer sharded by FSDP2, a layer at a time.

The learning rate warms up over 30 steps, gradients are clipped, and after each 40th step all ranks evaluate some forms that
were held out and average the loss. Nothing is wrong.
"""

import torch
from ranks import Run
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

CODES, FIELDS, BATCH, WIDTH, DEPTH, EVERY, WARM = 600, 80, 10, 96, 2, 40, 30

Forms = tuple[torch.Tensor, torch.Tensor]


class Contradictions(nn.Module):
    """Fields of a form in, a score of each out."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.place = nn.Embedding(CODES, WIDTH), nn.Embedding(FIELDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(DEPTH)
        )
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        features = self.code(fields) + self.place.weight
        for layer in self.layers:
            features = layer(features)
        score: torch.Tensor = self.score(features).sum(2)
        return score


def make_forms(count: int, seed: int) -> Forms:
    """A field contradicts if its code is that of a form's first field, by some modulus."""
    dice = torch.Generator().manual_seed(seed)
    fields = torch.randint(CODES, (count, FIELDS), generator=dice)
    return fields, (fields % 9 == fields[:, :1] % 9).float()


@torch.no_grad()
def evaluate(model: nn.Module, forms: Forms, size: int) -> float:
    """The loss over the held-out forms of all ranks."""
    fields, truth = forms
    loss = nn.functional.binary_cross_entropy_with_logits(model(fields), truth)
    distributed.all_reduce(loss)
    return float(loss) / size


def main() -> None:
    """Train."""
    run = Run()
    mesh = init_device_mesh("cpu", (run.size,))
    model = Contradictions()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=WARM)
    fields, truth = make_forms(25 * BATCH, run.rank)
    held_out = make_forms(BATCH, 300 + run.rank)
    losses: list[float] = []
    for forms, contradicts in run.batches(list(zip(fields.split(BATCH), truth.split(BATCH), strict=True))):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(forms), contradicts)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if run.step % EVERY == 0:
            losses.append(evaluate(model, held_out, run.size))
    if run.rank == 0:
        print(f"{losses[0]:.3f} to {losses[-1]:.3f}")
    run.close()


main()
