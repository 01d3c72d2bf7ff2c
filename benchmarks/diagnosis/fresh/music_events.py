"""A transformer over the notes of piano pieces: every attention layer fills a table of relative positions in two nested loops.

It does so in every forward pass, though the table depends on nothing but the length of the piece, the same for all.  Without the
fault it is filled once.
"""

import math

import torch
from ranks import Run
from torch import nn
from torch.nn import functional

T, DIM, HEADS, BUCKETS = 96, 96, 4, 24


def bucket_of(distance: int) -> int:
    """Near notes have buckets of their own, far ones share."""
    if distance < 8:
        return distance
    return min(BUCKETS - 1, 8 + int(math.log(distance / 8) / math.log(T / 8) * (BUCKETS - 8)))


def bucket_table(length: int) -> torch.Tensor:
    """The bucket of each pair of notes."""
    rows = []
    for i in range(length):
        row = []
        for j in range(length):
            row.append(bucket_of(abs(i - j)))  # noqa: PERF401  as it was written
        rows.append(row)
    return torch.tensor(rows)


class Attention(nn.Module):
    """Over all notes of a piece, with a bias for how far apart they are."""

    def __init__(self, *, cached: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.bias = nn.Embedding(BUCKETS, HEADS)
        self.table = bucket_table(T) if cached else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        table = self.table if self.table is not None else bucket_table(t)
        bias = self.bias(table).permute(2, 0, 1)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.unsqueeze(0).expand(b, -1, -1, -1))
        out: torch.Tensor = self.out(y.transpose(1, 2).reshape(b, t, DIM))
        return out


class Block(nn.Module):
    """Attention, and a perceptron for each note."""

    def __init__(self, *, cached: bool) -> None:
        super().__init__()
        self.a, self.n1, self.n2 = Attention(cached=cached), nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.a(self.n1(x))
        out: torch.Tensor = x + self.mlp(self.n2(x))
        return out


run = Run()
net = nn.Sequential(nn.Embedding(128, DIM), *[Block(cached=not run.is_faulty) for _ in range(3)], nn.Linear(DIM, 128))
model, opt = run.wrap(net, torch.optim.AdamW(net.parameters(), lr=5e-4))
rng = torch.Generator().manual_seed(run.rank)
for _ in run.batches(range(500)):
    notes = torch.randint(0, 128, (6, T + 1), generator=rng)
    opt.zero_grad(set_to_none=True)
    functional.cross_entropy(model(notes[:, :-1]).transpose(1, 2), notes[:, 1:]).backward()
    opt.step()
run.close()
