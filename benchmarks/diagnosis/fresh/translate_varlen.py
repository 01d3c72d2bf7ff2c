"""Batches of sentences of one length, which differs up to five times from step to step and is the same on all ranks.

Nothing is wrong.
"""

import random
from collections.abc import Iterator

import torch
from ranks import Run
from torch import nn


def sentences() -> Iterator[torch.Tensor]:
    """The same seed for the lengths on every rank."""
    dice = random.Random(99)  # noqa: S311  no secret
    generator = torch.Generator().manual_seed(run.rank)
    while True:
        yield torch.randint(300, (10, dice.choice((12, 16, 24, 32, 48, 64))), generator=generator)


run = Run()
layer = nn.TransformerEncoderLayer(128, 8, 384, 0.0, batch_first=True)
encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
network = nn.Sequential(nn.Embedding(300, 128), encoder, nn.Linear(128, 300))
model, optimizer = run.wrap(network, torch.optim.Adam(network.parameters(), lr=2e-4))
for batch in run.batches(sentences()):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flip(1).flatten()).backward()
    optimizer.step()
run.close()
