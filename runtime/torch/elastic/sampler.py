"""A sampler that hands out what is left of an epoch when the number of ranks changes."""

import math
import random
from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from ..basics import rank, size


class ElasticSampler(Sampler[int]):
    """Gives every rank its share of the samples that no rank has processed in this epoch.

    Call `record_batch` after each batch, and `set_epoch` at the end of each epoch; keep the sampler in the `TorchState`.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:  # noqa: FBT001, FBT002  Horovod's
        """Begin epoch 0.

        Args:
            seed: of the order, the same on all ranks.
        """
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.num_replicas = 0
        self.rank = 0
        self.remaining_indices: list[int] = []
        self.num_samples = 0
        self.total_size = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch: all samples are there again, in another order."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """All ranks have processed a batch of this many samples each."""
        del batch_idx
        self.record_indices(batch_size * self.num_replicas)

    def record_indices(self, count: int) -> None:
        """So many samples more were processed, on all ranks together."""
        self.processed_num = min(self.processed_num + count, len(self.dataset))

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The samples of a batch of this rank."""
        first = batch_idx * batch_size
        return self._mine()[first : first + batch_size]

    def state_dict(self) -> dict[str, Any]:
        """How far the epoch is."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from there."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide what is left among the present ranks."""
        self.num_replicas, self.rank = size(), rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            # Before the processed ones are left out, so that all ranks leave out the same.
            random.Random(self.seed + self.epoch).shuffle(indices)  # noqa: S311  an order, no secret
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def _mine(self) -> list[int]:
        indices = list(self.remaining_indices)
        while indices and len(indices) < self.total_size:  # every rank gets the same number
            indices += indices[: self.total_size - len(indices)]
        return indices[self.rank : self.total_size : self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        """This rank's samples."""
        return iter(self._mine())

    def __len__(self) -> int:
        """How many they are."""
        return self.num_samples
