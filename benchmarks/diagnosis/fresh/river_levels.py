"""River levels from rain, by an LSTM; ranks are bound to cores, and after 45 batches rank 1 rotates its log.

The old one is compressed by a child process, which inherits the affinity and takes half of rank 1's core from then on.  Without
the fault the log is left alone while the training lasts.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from ranks import Run
from torch import nn

GAUGES, DAYS, BATCH, WIDTH, ROTATED = 12, 48, 16, 96, 45
LZMA = "import lzma, sys; lzma.compress(open(sys.argv[1], 'rb').read(), preset=9 | lzma.PRESET_EXTREME)"


class Rivers(nn.Module):
    """Rain of seven weeks in, tomorrow's levels out."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(GAUGES, WIDTH, num_layers=2, batch_first=True)
        self.level = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, GAUGES))

    def forward(self, rain: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(rain)
        levels: torch.Tensor = self.level(hidden[:, -1])
        return levels


class RotatedLog:
    """A log that is compressed when it has grown."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "debug.log"
        self.path.write_bytes(os.urandom(40_000_000).hex().encode())
        self.child: subprocess.Popen[bytes] | None = None

    def rotate(self) -> None:
        self.child = subprocess.Popen([sys.executable, "-c", LZMA, str(self.path)])

    def close(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child.wait()


def main() -> None:
    """The training."""
    run = Run()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[run.rank % len(cores)]})
    rivers = Rivers()
    model, optimizer = run.wrap(rivers, torch.optim.Adam(rivers.parameters(), lr=1e-3))
    dice = torch.Generator().manual_seed(run.rank)
    with tempfile.TemporaryDirectory() as folder:
        log = RotatedLog(Path(folder))
        try:
            for _ in run.batches(range(10_000)):
                rain = torch.rand(BATCH, DAYS, GAUGES, generator=dice)
                optimizer.zero_grad()
                nn.functional.mse_loss(model(rain), rain[:, -5:].mean(1)).backward()
                optimizer.step()
                if run.is_faulty and run.rank == 1 and run.step == ROTATED:
                    log.rotate()
        finally:
            log.close()
    run.close()


main()
