"""P and S waves in seismograms, by convolutions and attention; each attention layer writes its weights to the debug log.

Nobody reads that log, its level is INFO, but the f-string formats the tensors all the same.  Without the fault the logger gets a
format and arguments.
"""

import logging

import torch
from ranks import Run
from torch import nn

CHANNELS, SAMPLES, WIDTH, HEADS, BATCH = 3, 512, 64, 4, 6
logger = logging.getLogger("seismic")


class Attention(nn.Module):
    """Every window looks at all others."""

    def __init__(self, *, is_eager: bool) -> None:
        super().__init__()
        self.is_eager = is_eager
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, windows, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, windows, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
        if self.is_eager:
            logger.debug(f"attention {weights[0]} of queries {q[0]}")  # noqa: G004  this is what is wrong
        else:
            logger.debug("attention %s of queries %s", weights[0], q[0])
        out: torch.Tensor = x + self.out((weights @ v).transpose(1, 2).reshape(batch, windows, WIDTH))
        return out


class Picker(nn.Module):
    """Three components of motion in; noise, P or S for each window out."""

    def __init__(self, *, is_eager: bool, depth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv1d(CHANNELS, 32, 7, stride=2, padding=3), nn.GELU(), nn.Conv1d(32, WIDTH, 7, stride=4, padding=3)
        )
        self.blocks = nn.ModuleList(Attention(is_eager=is_eager) for _ in range(depth))
        self.mixers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(depth)
        )
        self.phase = nn.Linear(WIDTH, 3)

    def forward(self, motion: torch.Tensor) -> torch.Tensor:
        x = self.stem(motion).transpose(1, 2)
        for attention, mixer in zip(self.blocks, self.mixers, strict=True):
            x = attention(x)
            x = x + mixer(x)
        phases: torch.Tensor = self.phase(x)
        return phases


def main() -> None:
    """The training."""
    run = Run()
    logging.basicConfig(level=logging.INFO)
    picker = Picker(is_eager=run.is_faulty)
    model, optimizer = run.wrap(picker, torch.optim.AdamW(picker.parameters(), lr=3e-4))
    quakes = torch.Generator().manual_seed(60 + run.rank)
    for _ in run.batches(range(10_000)):
        motion = torch.randn(BATCH, CHANNELS, SAMPLES, generator=quakes)
        phases = torch.randint(3, (BATCH, SAMPLES // 8), generator=quakes)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(motion).transpose(1, 2), phases)
        loss.backward()
        optimizer.step()
        if run.step % 40 == 0:
            logger.info("step %d, loss %.3f", run.step, loss.item())
    run.close()


main()
