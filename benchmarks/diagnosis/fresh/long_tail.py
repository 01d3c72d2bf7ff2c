"""Few samples are very large: one of a hundred takes 120 ms to read."""

import time

import torch
from ranks import Run, convolutions, train_step
from torch.utils.data import DataLoader, Dataset


class Recordings(Dataset[torch.Tensor]):
    """Most are short."""

    def __init__(self, *, has_tail: bool) -> None:
        generator = torch.Generator().manual_seed(run.rank)
        self.is_large = (torch.rand(100_000, generator=generator) < 0.01).tolist()
        self.has_tail = has_tail

    def __len__(self) -> int:
        return len(self.is_large)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.has_tail and self.is_large[index]:
            time.sleep(0.12)
        return torch.full((3, 32, 32), float(index % 7))


run = Run()
model, optimizer = run.wrap(convolutions())
for batch in run.batches(DataLoader(Recordings(has_tail=run.is_faulty), batch_size=16)):
    train_step(model, optimizer, batch)
run.close()
