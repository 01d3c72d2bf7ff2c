"""Patents and what they cite, contrastive learning over the patents of all ranks.

The features of every word are gathered from all ranks and averaged over the words after it, so a step sends 64 times as much as
it has to, and the same amount back for the gradients.  Without the fault features are averaged first.
"""

from typing import Any

import torch
from ranks import Run
from torch import nn

WORDS, LENGTH, BATCH, WIDTH, PLACE = 2000, 64, 24, 64, 320


class Reader(nn.Module):
    """Words in, the features of each of them out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.body = nn.Sequential(nn.Conv1d(WIDTH, WIDTH, 5, padding=2), nn.GELU())
        self.place = nn.Linear(WIDTH, PLACE)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.place(self.body(self.words(words).transpose(1, 2)).transpose(1, 2))
        return features


def gathered(hvd: Any, features: torch.Tensor, name: str, *, is_whole: bool) -> torch.Tensor:
    """The places of the texts of all ranks."""
    sent = features if is_whole else features.mean(1)
    places = hvd.allgather(sent, name=name)
    return nn.functional.normalize(places.mean(1) if is_whole else places, dim=1)


def main() -> None:
    """Train."""
    run = Run()
    reader = Reader()
    model, optimizer = run.wrap(reader, torch.optim.Adam(reader.parameters(), lr=5e-4))
    dice = torch.Generator().manual_seed(run.rank)
    for _ in run.batches(range(10_000)):
        patents = torch.randint(WORDS, (BATCH, LENGTH), generator=dice)
        cited = torch.where(torch.rand(BATCH, LENGTH, generator=dice) < 0.5, patents, patents.flip(1))
        first = gathered(run.hvd, model(patents), "patents", is_whole=run.is_faulty)
        second = gathered(run.hvd, model(cited), "cited", is_whole=run.is_faulty)
        optimizer.zero_grad()
        nn.functional.cross_entropy(first @ second.T / 0.1, torch.arange(len(first))).backward()
        optimizer.step()
    run.close()


main()
