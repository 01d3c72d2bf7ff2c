"""How brown a loaf is, from an oven's camera and probes: a regression that keeps the checkpoint of its best loss.

Rank 0 saves the network and the optimizer whenever the smoothed training loss is the best so far. While the network still
learns that is after almost every step, and rank 1 waits. Without the fault it looks whether to save after each 40th step.
"""

import os
import tempfile
from pathlib import Path
from typing import cast

import torch
from ranks import Run
from torch import nn

SIDE, PROBES, BATCH, WIDTH, HIDDEN = 32, 12, 20, 20, 1000


class Browning(nn.Module):
    """A picture and the probes in, degrees of brown out."""

    def __init__(self) -> None:
        super().__init__()
        self.eye = nn.Sequential(
            nn.Conv2d(3, WIDTH, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.head = nn.Sequential(
            nn.Linear(16 * WIDTH + PROBES, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 1),
        )

    def forward(self, picture: torch.Tensor, probes: torch.Tensor) -> torch.Tensor:
        brown: torch.Tensor = self.head(torch.cat([self.eye(picture), probes], 1)).squeeze(1)
        return brown


class BestCheckpoint:
    """Keeps the file of the best loss; a crash leaves the old one or the new one."""

    def __init__(self, folder: Path, every: int) -> None:
        self.path, self.every = folder / "best.pt", every
        self.smooth, self.best, self.saved = 0.0, float("inf"), 0

    def update(self, step: int, loss: float, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """After an update of the weights."""
        self.smooth = loss if step == 1 else 0.97 * self.smooth + 0.03 * loss
        if step % self.every == 0 and self.smooth < self.best:
            self.best = self.smooth
            self.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()})

    def save(self, state: dict[str, object]) -> None:
        """Write, then rename."""
        partial = self.path.with_suffix(".partial")
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.path)
        self.saved += 1


def bake(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loaves darken with the heat."""
    dice = torch.Generator().manual_seed(seed)
    probes = torch.rand(count, PROBES, generator=dice)
    brown = 4 * probes.mean(1) + probes[:, 0]
    pictures = torch.rand(count, 3, SIDE, SIDE, generator=dice) - brown[:, None, None, None] / 5
    return pictures, probes, brown


def main() -> None:
    """Train."""
    run = Run()
    network = Browning()
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(network.parameters(), lr=1.5e-5, fused=True)
    model, optimizer = run.wrap(network, optimizer)
    data = zip(*(part.split(BATCH) for part in bake(25 * BATCH, run.rank)), strict=True)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = BestCheckpoint(Path(folder), 1 if run.is_faulty else 40)
        for pictures, probes, brown in run.batches(list(data)):
            loss = nn.functional.mse_loss(cast("torch.Tensor", model(pictures, probes)), brown)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if run.rank == 0:
                checkpoint.update(run.step, loss.item(), network, optimizer)
        if run.rank == 0:
            print(f"saved {checkpoint.saved} times, best {checkpoint.best:.4f}")
    run.close()


main()
