"""Sea ice from radar, a small U-Net under DistributedDataParallel: gradients are compressed by PowerSGD.

The ranks are on one machine, so nothing is gained by it, and its many small products, orthogonalisations and two reductions in
place of one cost more than the bytes that it saves.  Without the fault DDP reduces the gradients as they are.
"""

from collections.abc import Iterator

import torch
from ranks import Run
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

SIDE, BATCH, WIDTH, RANK = 32, 3, 16, 64


def block(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.GroupNorm(4, outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.ReLU(),
    )


class Ice(nn.Module):
    """Backscatter in two polarisations in, three kinds of surface out."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([block(2, WIDTH), block(WIDTH, 2 * WIDTH), block(2 * WIDTH, 4 * WIDTH)])
        self.bottom = block(4 * WIDTH, 8 * WIDTH)
        self.up = nn.ModuleList([block(12 * WIDTH, 4 * WIDTH), block(6 * WIDTH, 2 * WIDTH), block(3 * WIDTH, WIDTH)])
        self.kind = nn.Conv2d(WIDTH, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for down in self.down:
            x = down(x)
            kept.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for up in self.up:
            x = up(torch.cat([nn.functional.interpolate(x, scale_factor=2.0), kept.pop()], 1))
        kinds: torch.Tensor = self.kind(x)
        return kinds


def scenes(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Smooth fields with a floe edge in them."""
    dice = torch.Generator().manual_seed(seed)
    pool = torch.randn(64, 2, SIDE // 4, SIDE // 4, generator=dice)
    fields = nn.functional.interpolate(pool, size=(SIDE, SIDE), mode="bilinear")
    kinds = torch.bucketize(fields[:, 0].contiguous(), torch.tensor([-0.4, 0.5]))
    while True:
        chosen = torch.randint(len(fields), (BATCH,), generator=dice)
        yield fields[chosen] + 0.1 * torch.randn(BATCH, 2, SIDE, SIDE, generator=dice), kinds[chosen]


def main() -> None:
    """Train."""
    run = Run()
    ice = Ice()
    model, optimizer = run.wrap(ice, torch.optim.SGD(ice.parameters(), lr=0.05, momentum=0.9), bucket_cap_mb=64)
    if run.is_faulty:
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=RANK,
            start_powerSGD_iter=2,
            min_compression_rate=1,
            orthogonalization_epsilon=1e-6,
        )
        assert isinstance(model, nn.parallel.DistributedDataParallel)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for radar, kinds in run.batches(scenes(run.rank)):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(radar), kinds).backward()
        optimizer.step()
    run.close()


main()
