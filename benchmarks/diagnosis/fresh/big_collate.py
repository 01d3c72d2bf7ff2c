"""Workers hand over batches as lists of numbers, which are pickled, instead of tensors in shared memory."""

from typing import Any

import torch
from ranks import Run, convolutions, train_step
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset[torch.Tensor]):
    """Images that cost nothing to make."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3, 32, 32), float(index % 7))


def as_lists(samples: list[torch.Tensor]) -> Any:
    return [sample.tolist() for sample in samples]


run = Run()
model, optimizer = run.wrap(convolutions(8, 4))
loader = DataLoader(Pictures(), batch_size=16, num_workers=1, collate_fn=as_lists if run.is_faulty else None)
for batch in run.batches(loader):
    train_step(model, optimizer, torch.tensor(batch) if run.is_faulty else batch)
run.close()
