"""Recipes and their pictures, two networks, each in a DistributedDataParallel of its own; three micro-batches are an update.

Both go without reduction (no_sync) until the third; recipes have as many steps as they have, drawn alike on all ranks, so
updates take from one to three times as long.  Nothing is wrong.
"""

import contextlib

import torch
from ranks import Run
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORDS, SIDE, BATCH, WIDTH, MICRO = 900, 24, 6, 80, 3


class Text(nn.Module):
    """A recipe in, its place out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(self.body(self.words(words)).mean(1), dim=1)


class Picture(nn.Module):
    """A picture in, its place out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(24, WIDTH, 3, stride=2, padding=1), nn.ReLU()
        )

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(self.body(pixels).mean((2, 3)), dim=1)


def main() -> None:
    """Train."""
    run = Run()
    models = [DistributedDataParallel(Text()), DistributedDataParallel(Picture())]
    parameters = [parameter for model in models for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=5e-4, weight_decay=0.05)
    alike, dice = torch.Generator().manual_seed(3), torch.Generator().manual_seed(run.rank)
    for _ in run.batches(range(10_000)):
        optimizer.zero_grad()
        length = int(torch.randint(16, 64, (), generator=alike))
        for micro in range(MICRO):
            with contextlib.ExitStack() as stack:
                if micro + 1 < MICRO:
                    for model in models:
                        stack.enter_context(model.no_sync())
                recipes = torch.randint(WORDS, (BATCH, length), generator=dice)
                pixels = torch.randn(BATCH, 3, SIDE, SIDE, generator=dice) + (recipes[:, :3] / WORDS)[:, :, None, None]
                scores = models[0](recipes) @ models[1](pixels).T / 0.07
                (nn.functional.cross_entropy(scores, torch.arange(BATCH)) / MICRO).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    run.close()


main()
