"""Types of clouds from pictures of the whole sky, a small ConvNet under DistributedDataParallel.

On rank 1's host oneDNN once gave wrong results, and a workaround still switches it off there, so convolutions take PyTorch's own,
slower path.  Without the fault both ranks use oneDNN.
"""

from collections.abc import Iterator

import torch
from ranks import Run
from torch import nn
from torch.backends import mkldnn

SIDE, BATCH, TYPES = 28, 6, 10
#: Hosts that need the workaround, by rank.
BROKEN = (1,)


class Block(nn.Module):
    """A wide convolution, and one of a pixel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.near = nn.Conv2d(width, width, 5, padding=2)
        self.norm = nn.GroupNorm(1, width)
        self.mix = nn.Sequential(nn.GELU(), nn.Conv2d(width, width, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.mix(self.norm(self.near(x)))
        return out


class Clouds(nn.Module):
    """A picture in, the scores of the types out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 4, stride=2, padding=1)
        self.body = nn.Sequential(Block(32), Block(32), nn.Conv2d(32, 64, 2, stride=2), Block(64), Block(64))
        self.head = nn.Linear(64, TYPES)

    def forward(self, sky: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.body(self.stem(sky)).mean((2, 3)))
        return scores


def skies(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pictures with the texture of their type."""
    dice = torch.Generator().manual_seed(seed)
    textures = torch.rand(TYPES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(5))
    while True:
        types = torch.randint(TYPES, (BATCH,), generator=dice)
        yield textures[types] + 0.5 * torch.randn(BATCH, 3, SIDE, SIDE, generator=dice), types


def main() -> None:
    """Train."""
    run = Run()
    clouds = Clouds()
    model, optimizer = run.wrap(clouds, torch.optim.AdamW(clouds.parameters(), lr=1e-3))
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=30)
    with mkldnn.flags(enabled=not (run.is_faulty and run.rank in BROKEN)):
        for sky, types in run.batches(skies(run.rank)):
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(sky), types, label_smoothing=0.1).backward()
            optimizer.step()
            warm.step()
    run.close()


main()
