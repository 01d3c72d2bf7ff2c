"""How a violin's string sounds in the hall, from how it sounds at the bridge: a dilated 1-D network and a loss over spectra.

The windows of the spectra are numpy's, thus in double precision, and so are the signals that the loss casts to match them,
with all that follows. Without the fault the windows are cast to float.
"""

from collections.abc import Sequence

import numpy as np
import torch
from ranks import Run
from torch import nn

SAMPLES, BATCH, WIDTH = 6000, 3, 14
RESOLUTIONS = (1024, 512, 256, 128)
DILATIONS = (1, 2, 4, 8)


class Hall(nn.Module):
    """At the bridge in, in the hall out."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, WIDTH, 9, padding=4)
        self.body = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 5, padding=2 * step, dilation=step) for step in DILATIONS)
        self.leave = nn.Conv1d(WIDTH, 1, 9, padding=4)

    def forward(self, bridge: torch.Tensor) -> torch.Tensor:
        sound = self.enter(bridge[:, None])
        for layer in self.body:
            sound = sound + nn.functional.leaky_relu(layer(sound), 0.1)
        hall: torch.Tensor = self.leave(sound).squeeze(1)
        return hall


class SpectralLoss(nn.Module):
    """Magnitudes and their logarithms, at several resolutions."""

    def __init__(self, sizes: Sequence[int], dtype: torch.dtype | None) -> None:
        super().__init__()
        self.sizes = sizes
        self.windows = [torch.as_tensor(np.hanning(size), dtype=dtype) for size in sizes]

    def magnitude(self, sound: torch.Tensor, size: int, window: torch.Tensor) -> torch.Tensor:
        """Of the spectrogram."""
        spectra = torch.stft(sound.to(window.dtype), size, size // 4, window=window, return_complex=True)
        return spectra.abs().clamp(min=1e-5)

    def forward(self, sound: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        losses = []
        for size, window in zip(self.sizes, self.windows, strict=True):
            ours, theirs = self.magnitude(sound, size, window), self.magnitude(truth, size, window)
            losses += [(ours - theirs).norm() / theirs.norm(), (ours.log() - theirs.log()).abs().mean()]
        return torch.stack(losses).mean()


def plucked(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Partials that fade, and the same with echoes."""
    dice = torch.Generator().manual_seed(seed)
    time = torch.arange(SAMPLES) / 16_000
    pitch = 200 + 400 * torch.rand(count, 1, 1, generator=dice)
    partials = torch.arange(1, 6)[None, :, None]
    sound = (torch.sin(2 * torch.pi * pitch * partials * time) / partials * torch.exp(-6 * time)).sum(1)
    echo = sum((sound.roll(delay, 1) * 0.4 for delay in (300, 700)), start=sound)
    return sound, echo


def main() -> None:
    """Train."""
    run = Run()
    network = Hall()
    model, optimizer = run.wrap(network, torch.optim.Adam(network.parameters(), lr=1e-3))
    criterion = SpectralLoss(RESOLUTIONS, None if run.is_faulty else torch.float32)
    bridge, hall = plucked(12 * BATCH, run.rank)
    mean = torch.zeros(())
    for sound, truth in run.batches(list(zip(bridge.split(BATCH), hall.split(BATCH), strict=True))):
        optimizer.zero_grad()
        loss = criterion(model(sound), truth)
        loss.backward()
        optimizer.step()
        mean += loss.detach().float()
    if run.rank == 0:
        print(f"mean loss {float(mean) / run.step:.3f}")
    run.close()


main()
