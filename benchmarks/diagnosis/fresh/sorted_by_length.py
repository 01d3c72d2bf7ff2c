"""Batches of like length: the batch sampler sorts all lengths anew for each batch, in the training process."""

import random
from collections.abc import Iterator

import torch
from ranks import Run, Transformer, train_step
from torch.utils.data import DataLoader, Dataset, Sampler

COUNT = 60_000


class Texts(Dataset[torch.Tensor]):
    """Sentences of 48 words."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(0, 1000, (48,), generator=torch.Generator().manual_seed(index))


class LikeLengths(Sampler[list[int]]):
    """Eight neighbours in the order of their lengths."""

    def __init__(self, *, is_sorted_anew: bool) -> None:
        self.is_sorted_anew = is_sorted_anew
        self.lengths = [random.Random(number).randint(10, 500) for number in range(COUNT)]  # noqa: S311  no secret

    def __iter__(self) -> Iterator[list[int]]:
        order = sorted(range(COUNT), key=self.lengths.__getitem__)
        for start in range(0, COUNT, 8):
            if self.is_sorted_anew:
                random.Random(start).shuffle(order)  # noqa: S311  no secret
                order.sort(key=self.lengths.__getitem__)
            yield order[start : start + 8]


run = Run()
model, optimizer = run.wrap(Transformer(64, 2))
loader = DataLoader(Texts(), num_workers=1, batch_sampler=LikeLengths(is_sorted_anew=run.is_faulty))
for batch in run.batches(loader):
    train_step(model, optimizer, batch)
run.close()
