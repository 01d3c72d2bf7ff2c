"""The pull on the lines of kites, by a trainer with callbacks: a slow average of weights, clipping, warm restarts, evaluation.

The average is kept by one operation over all weights, evaluation is after each 30th step with the averaged weights, on some
flights that were held out, and its error is averaged over the ranks.  Nothing is wrong.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from ranks import Run
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

SENSORS, LENGTH, BATCH, WIDTH = 9, 60, 14, 72

Batch = tuple[torch.Tensor, torch.Tensor]


class Pull(nn.Module):
    """A flight's sensors in, the pull over time out."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(SENSORS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.pull = nn.Linear(WIDTH, 1)

    def forward(self, flight: torch.Tensor) -> torch.Tensor:
        pull: torch.Tensor = self.pull(self.body(self.wide(flight))).squeeze(2)
        return pull


class Callback:
    """Does nothing at all."""

    def after_step(self, trainer: "Trainer", loss: torch.Tensor) -> None:
        """An update was made."""


class SlowWeights(Callback):
    """An exponential average of the weights."""

    def __init__(self, model: nn.Module, keep: float = 0.98) -> None:
        self.model, self.keep = copy.deepcopy(model).requires_grad_(requires_grad=False), keep
        self.slow: list[torch.Tensor] = [*self.model.parameters()]

    @torch.no_grad()
    def after_step(self, trainer: "Trainer", loss: torch.Tensor) -> None:  # noqa: ARG002  a callback's signature
        weights: list[torch.Tensor] = [*trainer.model.parameters()]
        torch._foreach_lerp_(self.slow, weights, 1 - self.keep)


class Schedule(Callback):
    """Cosine with warm restarts."""

    def __init__(self, optimizer: torch.optim.Optimizer, first: int) -> None:
        self.schedule = CosineAnnealingWarmRestarts(optimizer, T_0=first, T_mult=2)

    def after_step(self, trainer: "Trainer", loss: torch.Tensor) -> None:  # noqa: ARG002  a callback's signature
        self.schedule.step()


class Evaluation(Callback):
    """The error of the slow weights on flights that nobody learned from."""

    def __init__(self, hvd: Any, model: nn.Module, flights: Batch, every: int) -> None:
        self.hvd, self.model, self.flights, self.every = hvd, model, flights, every
        self.errors: list[float] = []

    @torch.no_grad()
    def after_step(self, trainer: "Trainer", loss: torch.Tensor) -> None:  # noqa: ARG002  a callback's signature
        if trainer.step % self.every == 0:
            sensors, pull = self.flights
            error = (self.model(sensors) - pull).abs().mean()
            self.errors.append(float(self.hvd.allreduce(error, name="error")))


class Trainer:
    """Batches in, updates out."""

    def __init__(self, model: nn.Module, optimizer: Any, callbacks: Sequence[Callback]) -> None:
        self.model, self.optimizer, self.callbacks, self.step = model, optimizer, callbacks, 0

    def fit(self, batches: Iterable[Batch]) -> None:
        for sensors, pull in batches:
            self.optimizer.zero_grad()
            loss = nn.functional.huber_loss(self.model(sensors), pull)
            loss.backward()
            self.optimizer.synchronize()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            with self.optimizer.skip_synchronize():
                self.optimizer.step()
            self.step += 1
            for callback in self.callbacks:
                callback.after_step(self, loss.detach())


def make_flights(count: int, seed: int) -> Batch:
    """Gusts, and a pull that follows them late."""
    dice = torch.Generator().manual_seed(seed)
    sensors = torch.randn(count, LENGTH, SENSORS, generator=dice).cumsum(1) / 4
    return sensors, sensors[:, :, :3].mean(2).roll(4, 1)


def main() -> None:
    """Train."""
    run = Run()
    network = Pull()
    model, optimizer = run.wrap(network, torch.optim.AdamW(network.parameters(), lr=2e-3))
    slow = SlowWeights(network)
    evaluation = Evaluation(run.hvd, slow.model, make_flights(BATCH, 90 + run.rank), 30)
    sensors, pull = make_flights(25 * BATCH, run.rank)
    batches = [*zip(sensors.split(BATCH), pull.split(BATCH), strict=True)]
    Trainer(model, optimizer, [slow, Schedule(optimizer, 40), evaluation]).fit(run.batches(batches))
    if run.rank == 0:
        print(f"error {evaluation.errors[0]:.3f} to {evaluation.errors[-1]:.3f}")
    run.close()


main()
