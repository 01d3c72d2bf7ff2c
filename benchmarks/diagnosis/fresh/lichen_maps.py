"""Lichens on rocks, pixel by pixel, four ranks; gradients of two micro-batches are combined with op=hvd.Adasum.

Somebody read that it scales better, but the ranks are on one machine, and it goes through all gradients several times, by pairs
of ranks.  Without the fault they are averaged.
"""

import torch
from ranks import Run
from torch import nn

SIDE, KINDS, BATCH, MICRO = 16, 6, 4, 2


class Lichens(nn.Module):
    """A picture in, the scores of the kinds for each pixel out."""

    def __init__(self) -> None:
        super().__init__()
        self.near = nn.Sequential(nn.Conv2d(4, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU())
        self.far = nn.Sequential(
            nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(32 * 64, 128), nn.ReLU(), nn.Linear(128, 32)
        )
        self.kind = nn.Conv2d(64, KINDS, 1)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        near = self.near(pixels)
        far = self.far(near)[:, :, None, None].expand_as(near)
        scores: torch.Tensor = self.kind(torch.cat([near, far], 1))
        return scores


def main() -> None:
    """Train."""
    run = Run()
    lichens = Lichens()
    model, optimizer = run.wrap(
        lichens,
        torch.optim.SGD(lichens.parameters(), lr=0.02, momentum=0.9),
        op=run.hvd.Adasum if run.is_faulty else run.hvd.Average,
        backward_passes_per_step=MICRO,
    )
    dice = torch.Generator().manual_seed(run.rank)
    for _ in run.batches(range(10_000)):
        optimizer.zero_grad()
        for _ in range(MICRO):
            kinds = torch.randint(KINDS, (BATCH, 4, 4), generator=dice).repeat_interleave(4, 1).repeat_interleave(4, 2)
            pixels = torch.randn(BATCH, 4, SIDE, SIDE, generator=dice) + kinds.unsqueeze(1) / 2
            (nn.functional.cross_entropy(model(pixels), kinds) / MICRO).backward()
        optimizer.step()
    run.close()


main()
