"""New glazes for tiles: a generator and a discriminator, each under DistributedDataParallel with an optimizer of its own.

The glazes of a step are made once and serve both. The discriminator sees them detached and beside real ones, then has its
gradients switched off while the generator learns from it, outside of its replicas' wrapper. Nothing is wrong.
"""

import torch
from ranks import Run
from torch import nn

PIXELS, NOISE, BATCH, WIDTH, MIX = 3 * 12 * 12, 48, 160, 256, 64


class Generator(nn.Module):
    """Noise in, glazes out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(NOISE, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, PIXELS), nn.Tanh()
        )

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        glazes: torch.Tensor = self.body(noise)
        return glazes


class Discriminator(nn.Module):
    """Glazes in, how real they look out; notices if a batch looks all alike."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(PIXELS, WIDTH), nn.LeakyReLU(0.2), nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(0.2)
        )
        self.mix = nn.Linear(WIDTH, MIX)
        self.score = nn.Linear(WIDTH + MIX, 1)

    def forward(self, glazes: torch.Tensor) -> torch.Tensor:
        features = self.body(glazes)
        halves = self.mix(features).view(-1, BATCH, MIX)
        spread = (halves - halves.mean(1, keepdim=True)).abs().flatten(0, 1)
        score: torch.Tensor = self.score(torch.cat([features, spread], 1)).squeeze(1)
        return score


def real_glazes(count: int, seed: int) -> torch.Tensor:
    """Waves of colours, from -1 to 1."""
    dice = torch.Generator().manual_seed(seed)
    phase = 6.28 * torch.rand(count, 3, 1, generator=dice)
    place = torch.arange(PIXELS // 3) / 12
    return torch.sin(phase + place).flatten(1)


def main() -> None:
    """Train."""
    run = Run()
    maker, judge = Generator(), Discriminator()
    generator, maker_optimizer = run.wrap(maker, torch.optim.Adam(maker.parameters(), 2e-4, (0.5, 0.99), fused=True))
    discriminator, judge_optimizer = run.wrap(
        judge, torch.optim.Adam(judge.parameters(), 4e-4, (0.5, 0.99), fused=True)
    )
    dice = torch.Generator().manual_seed(70 + run.rank)
    sums = torch.zeros(2)
    for real in run.batches(real_glazes(20 * BATCH, run.rank).split(BATCH)):
        made = generator(torch.randn(BATCH, NOISE, generator=dice))

        judge.requires_grad_(requires_grad=True)
        judge_optimizer.zero_grad()
        of_made, of_real = discriminator(torch.cat([made.detach(), real])).chunk(2)
        judge_loss = (nn.functional.softplus(of_made) + nn.functional.softplus(-of_real)).mean()
        judge_loss.backward()
        judge_optimizer.step()

        judge.requires_grad_(requires_grad=False)
        maker_optimizer.zero_grad()
        maker_loss = nn.functional.softplus(-judge(made)).mean()
        maker_loss.backward()
        maker_optimizer.step()
        sums += torch.stack([judge_loss.detach(), maker_loss.detach()])
    if run.rank == 0:
        print("discriminator {:.3f}, generator {:.3f}".format(*(sums / run.step).tolist()))
    run.close()


main()
