"""Calls of whales in recordings of hydrophones; the loudest moments of each channel are pooled by a function of our own.

Its backward pass puts the gradients back moment by moment, in two nested loops in Python.  Without the fault it scatters them at
once.
"""

from collections.abc import Iterator
from typing import Any

import torch
from ranks import Run
from torch import nn

LENGTH, BATCH, WIDTH, POOLED, KINDS, LOUDEST = 224, 12, 48, 24, 7, 4


class LoudestMoments(torch.autograd.Function):
    """The mean of the largest values of each channel."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        values, places = x.topk(LOUDEST, dim=2)
        ctx.save_for_backward(places)
        ctx.length = x.shape[2]
        return values.mean(2)

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> torch.Tensor:
        (places,) = ctx.saved_tensors
        gradient = outputs[0].new_zeros(*places.shape[:2], ctx.length)
        for row in range(places.shape[0]):
            for channel in range(places.shape[1]):
                gradient[row, channel, places[row, channel]] = outputs[0][row, channel] / LOUDEST
        return gradient


class LoudestAtOnce(LoudestMoments):
    """The same, without the loops."""

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> torch.Tensor:
        (places,) = ctx.saved_tensors
        gradient = outputs[0].new_zeros(*places.shape[:2], ctx.length)
        return gradient.scatter_(2, places, (outputs[0] / LOUDEST).unsqueeze(2).expand_as(places))


class Calls(nn.Module):
    """A spectrogram in, the scores of the species out."""

    def __init__(self, pool: type[LoudestMoments]) -> None:
        super().__init__()
        self.pool = pool
        self.body = nn.Sequential(
            nn.Conv1d(40, WIDTH, 5, padding=2),
            nn.ReLU(),
            *(layer for _ in range(5) for layer in (nn.Conv1d(WIDTH, WIDTH, 5, padding=2), nn.ReLU())),
            nn.Conv1d(WIDTH, POOLED, 1),
        )
        self.kind = nn.Linear(POOLED, KINDS)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        loudest = self.pool.apply(self.body(sound))  # type: ignore[no-untyped-call]
        scores: torch.Tensor = self.kind(loudest)
        return scores


def recordings(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Noise of the sea with a call in it."""
    dice = torch.Generator().manual_seed(seed)
    while True:
        kinds = torch.randint(KINDS, (BATCH,), generator=dice)
        sound = torch.randn(BATCH, 40, LENGTH, generator=dice)
        for row, kind in enumerate(kinds.tolist()):
            begin = int(torch.randint(LENGTH - 20, (), generator=dice))
            sound[row, 5 * kind : 5 * kind + 5, begin : begin + 20] += 2
        yield sound, kinds


run = Run()
calls = Calls(LoudestMoments if run.is_faulty else LoudestAtOnce)
model, optimizer = run.wrap(calls, torch.optim.Adam(calls.parameters(), lr=1e-3))
for sound, kinds in run.batches(recordings(run.rank)):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(sound), kinds).backward()
    optimizer.step()
run.close()
