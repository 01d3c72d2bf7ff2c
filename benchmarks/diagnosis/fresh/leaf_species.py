"""Which tree a leaf is from, by contrast with leaves seen before: an encoder, and a bank of some thousand earlier features.

The bank is a registered buffer of the network, so DistributedDataParallel broadcasts its 8 MB from rank 0 before each
forward pass, though every rank keeps its own. Without the fault: broadcast_buffers=False, there are no batch norms.
"""

from typing import cast

import torch
from ranks import Run
from torch import nn

SIDE, BATCH, WIDTH, FEATURES, BANK = 40, 16, 24, 128, 16_384
TEMPERATURE = 0.1


def block(width: int, stride: int) -> nn.Sequential:
    """A convolution that may halve the picture."""
    return nn.Sequential(
        nn.Conv2d(width, width, 3, stride=stride, padding=1), nn.GroupNorm(4, width), nn.ReLU(inplace=True)
    )


class LeafEncoder(nn.Module):
    """Two views of a leaf in, the contrastive loss out."""

    bank: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, WIDTH, 5, stride=2, padding=2),
            nn.ReLU(inplace=True),
            *(block(WIDTH, stride) for stride in (1, 1, 2, 1, 1)),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.project = nn.Linear(4 * WIDTH, FEATURES)
        self.register_buffer("bank", nn.functional.normalize(torch.randn(BANK, FEATURES), dim=1))
        self.cursor = 0

    def encode(self, leaves: torch.Tensor) -> torch.Tensor:
        """Unit vectors."""
        return nn.functional.normalize(self.project(self.body(leaves)), dim=1)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        query = self.encode(first)
        with torch.no_grad():
            key = self.encode(second)
        same = (query * key).sum(1, keepdim=True)
        other = query @ self.bank.T
        scores = torch.cat([same, other], 1) / TEMPERATURE
        loss = nn.functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))
        return loss, key

    @torch.no_grad()
    def remember(self, keys: torch.Tensor) -> None:
        """The oldest features give way."""
        self.bank[self.cursor : self.cursor + len(keys)] = keys
        self.cursor = (self.cursor + len(keys)) % BANK


def views(leaves: torch.Tensor, dice: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """The same leaves, mirrored and brightened."""
    light = 1 + 0.2 * torch.randn(len(leaves), 3, 1, 1, generator=dice)
    return leaves * light, leaves.flip(3)


def main() -> None:
    """Train."""
    run = Run()
    network = LeafEncoder()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(network.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    settings = {} if run.is_faulty else {"broadcast_buffers": False}
    model, optimizer = run.wrap(network, optimizer, **settings)
    dice = torch.Generator().manual_seed(run.rank)
    leaves = torch.rand(20 * BATCH, 3, SIDE, SIDE, generator=dice)
    total = torch.zeros(())
    for batch in run.batches(leaves.split(BATCH)):
        first, second = views(batch, dice)
        loss, keys = cast("tuple[torch.Tensor, torch.Tensor]", model(first, second))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        network.remember(keys)
        total += loss.detach()
    if run.rank == 0:
        print(f"mean loss {float(total) / run.step:.3f}")
    run.close()


main()
