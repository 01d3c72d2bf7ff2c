"""Captions of pictures by a GRU that starts from the picture's features; gradients are averaged, clipped, and averaged again.

The loop calls synchronize() to clip what was averaged, and then step() outside of skip_synchronize(), which averages once more.
Without the fault step() is inside.
"""

import contextlib
from typing import Any

import torch
from ranks import Run
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WORDS, LENGTH, WIDTH, BATCH, PICTURES = 3000, 10, 384, 12, 2400


class Captions(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Features of pictures, as a frozen network made them, and what is to be seen."""

    def __init__(self) -> None:
        dice = torch.Generator().manual_seed(12)
        self.features = torch.randn(PICTURES, 512, generator=dice)
        self.words = torch.randint(WORDS, (PICTURES, LENGTH + 1), generator=dice)

    def __len__(self) -> int:
        return PICTURES

    def __getitem__(self, picture: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.features[picture], self.words[picture]


class Decoder(nn.Module):
    """Features and the words so far in, scores of the next words out."""

    def __init__(self) -> None:
        super().__init__()
        self.begin = nn.Linear(512, WIDTH)
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.vocabulary = nn.Linear(WIDTH, WORDS)

    def forward(self, features: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.gru(self.drop(self.embedding(words)), torch.tanh(self.begin(features)).unsqueeze(0))
        scores: torch.Tensor = self.vocabulary(self.drop(hidden))
        return scores


def train() -> None:
    run = Run()
    decoder = Decoder()
    wrapped: tuple[nn.Module, Any] = run.wrap(decoder, torch.optim.SGD(decoder.parameters(), lr=0.1))
    model, optimizer = wrapped
    captions = Captions()
    sampler: DistributedSampler[Any] = DistributedSampler(captions, num_replicas=run.size, rank=run.rank)
    loader = DataLoader(captions, BATCH, sampler=sampler, drop_last=True)
    for features, words in run.batches(loader):
        optimizer.zero_grad()
        scores = model(features, words[:, :-1])
        nn.functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten()).backward()
        optimizer.synchronize()
        clip_grad_norm_(model.parameters(), 1.0)
        with contextlib.nullcontext() if run.is_faulty else optimizer.skip_synchronize():
            optimizer.step()
    run.close()


if __name__ == "__main__":
    train()
