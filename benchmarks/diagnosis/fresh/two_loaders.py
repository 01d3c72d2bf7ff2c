"""Each step takes a batch with labels and one without, and the second comes from a loader without workers."""

import time
from collections.abc import Iterator

import torch
from ranks import Run, convolutions, train_step
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset[torch.Tensor]):
    """Each takes so many ms to read."""

    def __init__(self, ms: float) -> None:
        self.ms = ms

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.ms / 1e3)
        return torch.full((3, 32, 32), float(index % 7))


def both() -> Iterator[torch.Tensor]:
    labelled = DataLoader(Pictures(0), batch_size=8, num_workers=1)
    unlabelled = DataLoader(Pictures(3 if run.is_faulty else 0), batch_size=8)
    for first, second in zip(labelled, unlabelled, strict=True):
        yield torch.cat([first, second])


run = Run()
model, optimizer = run.wrap(convolutions())
for batch in run.batches(both()):
    train_step(model, optimizer, batch)
run.close()
