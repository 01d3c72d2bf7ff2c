"""How courts will rule, from the tokens of a complaint: a transformer sharded by FSDP2.

The sharding helper goes through all modules and shards each that has parameters of its own (every projection, every norm),
so each layer is gathered and scattered in a dozen small collectives. Without the fault it shards whole encoder layers.
"""

from collections.abc import Iterator

import torch
from ranks import Run
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

WORDS, LENGTH, BATCH, WIDTH, DEPTH, RULINGS = 1200, 48, 6, 96, 3, 12


class Attention(nn.Module):
    """Self-attention with four heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        batch, length, width = words.shape
        query, key, value = (
            layer(words).view(batch, length, 4, width // 4).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        out: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Layer(nn.Module):
    """Attention and two linear layers, normalised before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        words = words + self.attention(self.before(words))
        inner = nn.functional.gelu(self.wide(self.between(words)))
        out: torch.Tensor = words + self.narrow(inner)
        return out


class Judge(nn.Module):
    """Tokens of a complaint in, rulings out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer(WIDTH) for _ in range(DEPTH))
        self.ruling = nn.Linear(WIDTH, RULINGS)

    def forward(self, complaint: torch.Tensor) -> torch.Tensor:
        words = self.words(complaint)
        for layer in self.layers:
            words = layer(words)
        ruling: torch.Tensor = self.ruling(words.mean(1))
        return ruling


def shard(model: Judge, mesh: DeviceMesh, *, is_fine: bool) -> None:
    """FSDP2, from the inside out."""
    inner = [module for module in model.modules() if module is not model]
    for module in reversed(inner):
        has_own = any(True for _ in module.parameters(recurse=False))
        if has_own if is_fine else isinstance(module, Layer):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


def complaints(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Thirty batches, and what was ruled: the kind of the most frequent word."""
    dice = torch.Generator().manual_seed(seed)
    words = torch.randint(WORDS, (30, BATCH, LENGTH), generator=dice)
    rulings = words[:, :, :8].sum(2) % RULINGS
    yield from zip(words, rulings, strict=True)


def main() -> None:
    """Train."""
    run = Run()
    mesh = init_device_mesh("cpu", (run.size,))
    model = Judge()
    shard(model, mesh, is_fine=run.is_faulty)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    for words, rulings in run.batches(list(complaints(run.rank))):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words), rulings)
        loss.backward()
        optimizer.step()
    run.close()


main()
