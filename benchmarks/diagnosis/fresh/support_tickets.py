"""A classifier of support tickets whose collate function cuts the texts of every batch into word pieces, in pure Python.

It has no workers, and the pieces of a text are always the same: they could be made once, before the training.
"""

import random
from collections import Counter
from itertools import pairwise

import torch
from ranks import Run, Transformer
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BATCH, MAX_LENGTH, VOCABULARY = 16, 64, 2000
SYLLABLES = (
    "ka",
    "lo",
    "mi",
    "ter",
    "ing",
    "pro",
    "un",
    "dis",
    "con",
    "ver",
    "ation",
    "ment",
    "ly",
    "ed",
    "re",
    "pay",
    "log",
    "in",
)

Text = str | list[int]
"""A ticket, or its pieces."""


def learn_merges(words: list[str], count: int = 300) -> dict[tuple[str, str], int]:
    """The pairs that are merged, with their priorities."""
    pairs: Counter[tuple[str, str]] = Counter()
    for word in words:
        pairs.update(pairwise(word))
        pairs.update((word[at : at + 2], word[at + 2]) for at in range(len(word) - 2))
    return {pair: priority for priority, (pair, _) in enumerate(pairs.most_common(count))}


def pieces(word: str) -> list[str]:
    """The pieces of a word: the pair of the best priority is merged until none is left."""
    parts = list(word)
    while len(parts) > 1:
        best, at = min((merges.get(pair, len(merges)), number) for number, pair in enumerate(pairwise(parts)))
        if best == len(merges):
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def encode(text: str) -> list[int]:
    """The pieces of all words of a text, as many as the model takes."""
    ids = [
        1 + sum(ord(letter) * 31**place for place, letter in enumerate(piece)) % (VOCABULARY - 1)
        for word in text.split()
        for piece in pieces(word)
    ]
    return (ids + [0] * MAX_LENGTH)[:MAX_LENGTH]


class Tickets(Dataset[tuple[Text, int]]):
    """400 texts, again and again, each with the queue that it belongs to."""

    def __init__(self, count: int, *, is_encoded: bool) -> None:
        texts = [" ".join(dice.choices(words, k=dice.randint(40, 90))) for _ in range(400)]
        self.queues = [len(text) % 8 for text in texts]
        self.texts: list[Text] = [encode(text) if is_encoded else text for text in texts]
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Text, int]:
        return self.texts[index % 400], self.queues[index % 400]


def collate(items: list[tuple[Text, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [encode(text) if isinstance(text, str) else text for text, _ in items]
    return torch.tensor(rows), torch.tensor([queue for _, queue in items])


run = Run()
dice = random.Random(7)  # noqa: S311  no secret
words = ["".join(dice.choices(SYLLABLES, k=dice.randint(2, 5))) for _ in range(3000)]
merges = learn_merges(words)
tickets = Tickets(run.args.steps * BATCH * run.size, is_encoded=not run.is_faulty)
sampler: DistributedSampler[tuple[Text, int]] = DistributedSampler(tickets, run.size, run.rank)
classifier = Transformer(96, 2, VOCABULARY)
model, optimizer = run.wrap(classifier, torch.optim.Adam(classifier.parameters(), lr=1e-3))
for tokens, queues in run.batches(DataLoader(tickets, BATCH, sampler=sampler, collate_fn=collate)):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(tokens), queues).backward()
    optimizer.step()
run.close()
