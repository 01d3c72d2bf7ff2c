"""Where the tiles of a broken mosaic belong, by a trainer with callbacks, under DistributedDataParallel.

A callback makes sure that the replicas agree: after each step it computes SHA-256 of all weights and compares the digests of the
ranks.  Without the fault it does so once, at the end.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from ranks import Run
from torch import distributed, nn

SIDE, PLACES, BATCH, WIDTH = 16, 36, 48, 896


class Callback(Protocol):
    """What a trainer calls."""

    def after_step(self, trainer: "Trainer", loss: torch.Tensor) -> None:
        """An update was made."""

    def after_training(self, trainer: "Trainer") -> None:
        """The last update was made."""


class Progress:
    """The mean loss of so many steps."""

    def __init__(self, every: int) -> None:
        self.every, self.losses, self.means = every, torch.zeros(()), [0.0]

    def after_step(self, trainer: "Trainer", loss: torch.Tensor) -> None:
        self.losses += loss
        if trainer.step % self.every == 0:
            self.means.append(float(self.losses) / self.every)
            self.losses.zero_()

    def after_training(self, trainer: "Trainer") -> None:
        if trainer.rank == 0:
            print(f"{self.means[1]:.3f} to {self.means[-1]:.3f} in {trainer.step} steps")


class ReplicasAgree:
    """All ranks have the same weights."""

    def __init__(self, *, is_frequent: bool) -> None:
        self.is_frequent = is_frequent

    def check(self, model: nn.Module) -> None:
        digest = hashlib.sha256()
        for tensor in model.state_dict().values():
            digest.update(tensor.numpy().tobytes())
        own = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8).long()
        first = own.clone()
        distributed.broadcast(first, 0)
        if not torch.equal(own, first):
            raise RuntimeError("the replicas differ")

    def after_step(self, trainer: "Trainer", loss: torch.Tensor) -> None:  # noqa: ARG002  a callback's signature
        if self.is_frequent:
            self.check(trainer.model)

    def after_training(self, trainer: "Trainer") -> None:
        self.check(trainer.model)


class Trainer:
    """Batches in, updates out."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, callbacks: Sequence[Callback]
    ) -> None:
        self.model, self.optimizer, self.rank, self.callbacks = model, optimizer, rank, callbacks
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
        self.step = 0

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        tiles, places = batch
        loss: torch.Tensor = self.criterion(self.model(tiles), places)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
        self.optimizer.step()
        return loss.detach()

    def fit(self, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for batch in batches:
            loss = self.training_step(batch)
            self.step += 1
            for callback in self.callbacks:
                callback.after_step(self, loss)
        for callback in self.callbacks:
            callback.after_training(self)


def main() -> None:
    """Train."""
    run = Run()
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1024, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, PLACES),
    )
    model, optimizer = run.wrap(network, torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9))
    dice = torch.Generator().manual_seed(run.rank)
    places = torch.randint(PLACES, (20, BATCH), generator=dice)
    tiles = torch.rand(20, BATCH, 3, SIDE, SIDE, generator=dice) + places[:, :, None, None, None] / PLACES
    trainer = Trainer(model, optimizer, run.rank, [Progress(20), ReplicasAgree(is_frequent=run.is_faulty)])
    trainer.fit(run.batches(list(zip(tiles, places, strict=True))))
    run.close()


main()
