"""Four workers read one archive, and a lock lets one of them in at a time."""

import multiprocessing
import time

import torch
from ranks import Run, convolutions, train_step
from torch.utils.data import DataLoader, Dataset

LOCK = multiprocessing.Lock()


class Archive(Dataset[torch.Tensor]):
    """Each sample takes 6 ms to read."""

    def __init__(self, *, is_locked: bool) -> None:
        self.is_locked = is_locked

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.is_locked:
            with LOCK:
                time.sleep(0.006)
        else:
            time.sleep(0.006)
        return torch.full((3, 32, 32), float(index % 7))


run = Run()
model, optimizer = run.wrap(convolutions())
loader = DataLoader(Archive(is_locked=run.is_faulty), batch_size=16, num_workers=4)
for batch in run.batches(loader):
    train_step(model, optimizer, batch)
run.close()
