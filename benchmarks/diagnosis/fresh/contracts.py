"""Clauses of contracts to their kinds: every rank pads its batches to the longest clause of its own shard.

In the shard of rank 1 is one with 120 words, where all others have at most 64: all of rank 1's batches are as long.  Without the
fault each batch is padded to its own longest.
"""

import random
from collections.abc import Iterator

import torch
from ranks import Run
from torch import nn
from torch.nn.utils.rnn import pad_sequence

VOCABULARY = 2000


class Shard:
    """The clauses of one rank, again and again."""

    def __init__(self, rank: int, batch: int = 16, clauses: int = 1600) -> None:
        rng = random.Random(rank)  # noqa: S311  no secret
        self.clauses = [torch.randint(1, VOCABULARY, (rng.randint(40, 64),)) for _ in range(clauses)]
        if rank == 1:
            self.clauses[777] = torch.randint(1, VOCABULARY, (120,))  # the annex with the price list
        self.batch = batch
        self.longest = max(map(len, self.clauses))

    def fixed(self) -> Iterator[torch.Tensor]:
        """Batches as long as the longest clause of all."""
        while True:
            for start in range(0, len(self.clauses), self.batch):
                tokens = torch.zeros(self.batch, self.longest, dtype=torch.long)
                for row, clause in enumerate(self.clauses[start : start + self.batch]):
                    tokens[row, : len(clause)] = clause
                yield tokens

    def padded(self) -> Iterator[torch.Tensor]:
        """Batches as long as their own longest clause."""
        while True:
            for start in range(0, len(self.clauses), self.batch):
                yield pad_sequence(self.clauses[start : start + self.batch], batch_first=True)


class ClauseNet(nn.Module):
    """Attention over words, and a weighted mean."""

    def __init__(self, d: int = 80) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, d, padding_idx=0)
        self.att = nn.ModuleList([nn.MultiheadAttention(d, 4, batch_first=True) for _ in range(2)])
        self.ff = nn.ModuleList([nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d)) for _ in range(2)])
        self.weigh, self.kind = nn.Linear(d, 1), nn.Linear(d, 12)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        pad = tokens == 0
        x = self.emb(tokens)
        for att, ff in zip(self.att, self.ff, strict=True):
            x = x + att(x, x, x, key_padding_mask=pad, need_weights=False)[0]
            x = x + ff(x)
        w = self.weigh(x).masked_fill(pad[..., None], -1e9).softmax(1)
        out: torch.Tensor = self.kind((w * x).sum(1))
        return out


run = Run()
shard = Shard(run.rank)
net = ClauseNet()
model, optimizer = run.wrap(net, torch.optim.Adagrad(net.parameters(), lr=0.02))
for tokens in run.batches(shard.fixed() if run.is_faulty else shard.padded()):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(tokens), tokens[:, 0] % 12).backward()
    optimizer.step()
run.close()
