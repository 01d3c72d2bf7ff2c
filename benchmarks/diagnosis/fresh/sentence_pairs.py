"""Which sentences mean the same, contrastive learning by an encoder with adapters: rank 0 still runs tracemalloc.

Somebody looked for a leak last week, and every allocation of Python's there is still written down with the stack that made it.
Without the fault no rank traces.
"""

import contextlib
import tracemalloc
from typing import Self

import torch
from ranks import Run
from torch import nn

WORDS, LENGTH, PAIRS, WIDTH, DEPTH = 4000, 16, 14, 64, 6


class Adapter(nn.Module):
    """A narrow way round."""

    def __init__(self, narrow: int = 16) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(WIDTH, narrow), nn.Linear(narrow, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.up(nn.functional.gelu(self.down(self.norm(x))))
        return out


class Layer(nn.Module):
    """Attention and a perceptron, an adapter after each."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.adapters = nn.ModuleList(Adapter() for _ in range(2))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        heads: torch.Tensor = x.unflatten(2, (self.heads, -1)).transpose(1, 2)
        return heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        seen = nn.functional.scaled_dot_product_attention(
            self.split(self.query(y)), self.split(self.key(y)), self.split(self.value(y))
        )
        x = self.adapters[0](x + self.mix(seen.transpose(1, 2).flatten(2)))
        out: torch.Tensor = self.adapters[1](x + self.narrow(nn.functional.gelu(self.wide(self.norms[1](x)))))
        return out


class Sentences(nn.Module):
    """Words in, a direction out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(DEPTH)))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(self.layers(self.words(words)).mean(1), dim=1)


class Trainer:
    """Pairs that mean the same attract each other, all others repel."""

    def __init__(self, run: Run) -> None:
        self.run = run
        encoder = Sentences()
        self.model, self.optimizer = run.wrap(encoder, torch.optim.AdamW(encoder.parameters(), lr=2e-4))
        self.dice = torch.Generator().manual_seed(run.rank)
        self.stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if self.run.is_faulty and self.run.rank == 0:
            tracemalloc.start(10)
            self.stack.callback(tracemalloc.stop)
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def train(self) -> None:
        for _ in self.run.batches(range(10_000)):
            one = torch.randint(WORDS, (PAIRS, LENGTH), generator=self.dice)
            other = one[:, torch.randperm(LENGTH, generator=self.dice)].clone()
            other[:, 0] = torch.randint(WORDS, (PAIRS,), generator=self.dice)
            one_way, other_way = self.model(torch.cat([one, other])).chunk(2)
            alike = one_way @ other_way.T / 0.07
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(alike, torch.arange(PAIRS)).backward()
            self.optimizer.step()


run = Run()
with Trainer(run) as trainer:
    trainer.train()
run.close()
