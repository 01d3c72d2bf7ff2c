"""Contrastive learning with a memory bank: the last features of all tiles, of which a step draws a thousand as negatives.

The bank is a buffer of the module, and DistributedDataParallel sends all buffers from rank 0 to everyone before each forward
pass: 20 MB that nobody needs.  Without the fault broadcast_buffers is False (there are no batch norms).
"""

import torch
from ranks import Run
from torch import nn

TILES, FEATURES, BATCH, NEGATIVES = 40_000, 128, 24, 1024


def encoder() -> nn.Sequential:
    """A small CNN."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (16, 32, 48):
        layers += [
            nn.Conv2d(channels, width, 3, stride=2, padding=1),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
        ]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, FEATURES))


class Instances(nn.Module):
    """Which of the tiles is it?"""

    bank: torch.Tensor

    def __init__(self, momentum: float = 0.5, temperature: float = 0.1) -> None:
        super().__init__()
        self.momentum, self.temperature = momentum, temperature
        self.encoder = encoder()
        self.register_buffer("bank", nn.functional.normalize(torch.randn(TILES, FEATURES), dim=1))

    def forward(self, tiles: torch.Tensor, which: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = nn.functional.normalize(self.encoder(tiles), dim=1)
        positives = self.bank[which]
        negatives = self.bank[torch.randint(TILES, (NEGATIVES,))]
        logits = torch.cat([(features * positives).sum(1, keepdim=True), features @ negatives.T], dim=1)
        return logits / self.temperature, features

    @torch.no_grad()
    def remember(self, which: torch.Tensor, features: torch.Tensor) -> None:
        """Put these features into the bank, mixed with what was there."""
        mixed = torch.lerp(features, self.bank[which], self.momentum)
        self.bank[which] = nn.functional.normalize(mixed, dim=1)


run = Run()
instances = Instances()
sgd = torch.optim.SGD(instances.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
model, optimizer = run.wrap(instances, sgd, broadcast_buffers=run.is_faulty)
gen = torch.Generator().manual_seed(run.rank)
for _ in run.batches(range(10**6)):
    tiles, which = torch.randn(BATCH, 3, 32, 32, generator=gen), torch.randint(TILES, (BATCH,), generator=gen)
    logits, features = model(tiles, which)
    loss = nn.functional.cross_entropy(logits, torch.zeros(BATCH, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    instances.remember(which, features)
run.close()
