"""A language model that runs its one block again and again, two to nine times; all three ranks draw alike how often.

Steps differ up to fourfold, at random, and by as much on every rank.  Nothing is wrong.
"""

import random

import torch
from ranks import Run
from torch import nn

WORDS, LENGTH, BATCH, WIDTH, HEADS = 600, 32, 6, 96, 6


class Looped(nn.Module):
    """Words in, scores of the following words out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.order = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.mix = nn.Linear(2 * WIDTH, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, HEADS, 3 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.scores = nn.Linear(WIDTH, WORDS)
        self.mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)

    def forward(self, words: torch.Tensor, times: int) -> torch.Tensor:
        given = self.words(words) + self.order
        thought = torch.zeros_like(given)
        for _ in range(times):
            thought = self.block(self.mix(torch.cat([thought, given], 2)), self.mask, is_causal=True)
        scores: torch.Tensor = self.scores(thought)
        return scores


run = Run()
looped = Looped()
model, optimizer = run.wrap(looped, torch.optim.AdamW(looped.parameters(), lr=5e-4))
depth = random.Random(19)  # noqa: S311  the same on all ranks
dice = torch.Generator().manual_seed(run.rank)
for _ in run.batches(range(10_000)):
    words = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=dice)
    times = min(9, 2 + int(depth.lognormvariate(0.9, 0.6)))
    optimizer.zero_grad()
    scores = model(words[:, :-1], times)
    nn.functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten()).backward()
    optimizer.step()
run.close()
