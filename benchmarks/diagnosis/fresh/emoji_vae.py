"""A variational autoencoder of emojis: rank 0 draws a preview sheet (a PNG of 64 samples) after every third batch.

A call slipped from the epoch's loop into the batches' loop.  Without the fault a sheet is drawn once an epoch.
"""

import struct
import tempfile
import zlib
from pathlib import Path

import torch
from ranks import Run
from torch import nn

LATENT, SIDE = 24, 32
BATCHES_PER_EPOCH = 60


def png(pixels: torch.Tensor) -> bytes:
    """Bytes of a picture (height, width, 3) of uint8."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width, _ = pixels.shape
    raw = b"".join(b"\0" + row.numpy().tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")


class VAE(nn.Module):
    """Pictures in; the logits of their pixels out, and how far the latents are from normal."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 16, 4, 2, 1),
            nn.ELU(),
            nn.Conv2d(16, 32, 4, 2, 1),
            nn.ELU(),
            nn.Flatten(),
            nn.Linear(32 * 64, 2 * LATENT),
        )
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, 32 * 64),
            nn.Unflatten(1, (32, 8, 8)),
            nn.ConvTranspose2d(32, 16, 4, 2, 1),
            nn.ELU(),
            nn.ConvTranspose2d(16, 3, 4, 2, 1),
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        out: tuple[torch.Tensor, torch.Tensor] = (self.decoder(z), divergence)
        return out


@torch.no_grad()
def preview(vae: VAE, folder: str, step: int) -> None:
    """Write a sheet of eight times eight samples."""
    samples = torch.sigmoid(vae.decoder(torch.randn(64, LATENT)))
    sheet = samples.view(8, 8, 3, SIDE, SIDE).permute(0, 3, 1, 4, 2).reshape(8 * SIDE, 8 * SIDE, 3)
    Path(folder, f"preview-{step:06d}.png").write_bytes(png((sheet * 255).to(torch.uint8)))


run = Run()
vae = VAE()
model, optimizer = run.wrap(vae, torch.optim.Adamax(vae.parameters(), lr=2e-3))
every = 3 if run.is_faulty else BATCHES_PER_EPOCH
emojis = torch.rand(10, 64, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(run.rank))
with tempfile.TemporaryDirectory() as folder:
    for batch in run.batches(emojis):
        optimizer.zero_grad()
        rebuilt, divergence = model(batch)
        (nn.functional.mse_loss(torch.sigmoid(rebuilt), batch, reduction="sum") / len(batch) + divergence).backward()
        optimizer.step()
        if run.rank == 0 and run.step % every == 0:
            preview(vae, folder, run.step)
    run.close()
