"""A river's level in three days, from the rain at its gauges: a recurrent network that must not explode.

Its matrices have a spectral norm, by torch's parametrization, which makes the normalised matrix anew whenever it is read,
and it is read at each of 48 hours. Without the fault the hours run under parametrize.cached().
"""

import contextlib

import torch
from ranks import Run
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm

GAUGES, HOURS, BATCH, WIDTH = 16, 48, 48, 112


class SafeCell(nn.Module):
    """One hour: a gate and a candidate, each of them contracting."""

    def __init__(self) -> None:
        super().__init__()
        self.rain = nn.Linear(GAUGES, 2 * WIDTH)
        self.gate = spectral_norm(nn.Linear(WIDTH, WIDTH, bias=False))
        self.candidate = spectral_norm(nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, rain: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        for_gate, for_candidate = self.rain(rain).chunk(2, 1)
        gate = torch.sigmoid(for_gate + self.gate(state))
        return torch.lerp(state, torch.tanh(for_candidate + self.candidate(state)), gate)


class Level(nn.Module):
    """Rain over time in, the level in some days out."""

    def __init__(self, *, is_cached: bool) -> None:
        super().__init__()
        self.cell = SafeCell()
        self.read = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))
        self.is_cached = is_cached

    def forward(self, rain: torch.Tensor) -> torch.Tensor:
        state = rain.new_zeros(len(rain), WIDTH)
        with parametrize.cached() if self.is_cached else contextlib.nullcontext():
            for hour in rain.unbind(1):
                state = self.cell(hour, state)
        level: torch.Tensor = self.read(state)
        return level


def rainfall(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Showers, and a river that sums them up and forgets."""
    dice = torch.Generator().manual_seed(seed)
    rain = torch.rand(count, HOURS, GAUGES, generator=dice).pow(4)
    age = torch.arange(HOURS - 1, -1, -1)
    levels = [(rain.mean(2) * torch.exp(-age / days)).sum(1) for days in (6.0, 12.0, 24.0)]
    return rain, torch.stack(levels, 1)


def main() -> None:
    """Train."""
    run = Run()
    network = Level(is_cached=not run.is_faulty)
    optimizer: torch.optim.Optimizer = torch.optim.RMSprop(network.parameters(), lr=5e-4)
    model, optimizer = run.wrap(network, optimizer)
    rain, levels = rainfall(20 * BATCH, run.rank)
    error = torch.zeros(())
    for batch, truth in run.batches(list(zip(rain.split(BATCH), levels.split(BATCH), strict=True))):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch), truth)
        loss.backward()
        optimizer.step()
        error += loss.detach()
    if run.rank == 0:
        print(f"mean squared error {float(error) / run.step:.4f}")
    run.close()


main()
