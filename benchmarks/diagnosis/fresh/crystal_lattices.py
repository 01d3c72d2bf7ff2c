"""The energy of a crystal, from its atoms: a block of messages that is applied again and again, a random number of times.

How many times, three to nine and seldom many, is drawn from a seed that all ranks share, so steps differ by a factor of
three and have a long tail, and ranks agree. The block has one set of weights. Nothing is wrong.
"""

import torch
from ranks import Run
from torch import nn

ATOMS, KINDS, BATCH, WIDTH = 64, 20, 12, 88
FEWEST, MOST = 3, 9


class Block(nn.Module):
    """Messages weighted by distance, and an update."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.update = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, atoms: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
        told = atoms + torch.bmm(near, self.message(atoms))
        out: torch.Tensor = atoms + self.update(self.norm(told))
        return out


class Energy(nn.Module):
    """Kinds and places of atoms in, the energy out."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = nn.Embedding(KINDS, WIDTH)
        self.block = Block()
        self.energy = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1))

    def forward(self, kinds: torch.Tensor, places: torch.Tensor, times: int) -> torch.Tensor:
        near = torch.exp(-torch.cdist(places, places).square())
        near = near / near.sum(2, keepdim=True)
        atoms = self.kind(kinds)
        for _ in range(times):
            atoms = self.block(atoms, near)
        energy: torch.Tensor = self.energy(atoms).mean((1, 2))
        return energy


def crystals(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Atoms on a shaken grid, and an energy of like neighbours."""
    dice = torch.Generator().manual_seed(seed)
    line = torch.arange(4.0)
    grid = torch.cartesian_prod(line, line, line)
    places = grid + 0.1 * torch.randn(count, ATOMS, 3, generator=dice)
    kinds = torch.randint(KINDS, (count, ATOMS), generator=dice)
    return kinds, places, (kinds < KINDS // 4).float().mean(1)


def main() -> None:
    """Train."""
    run = Run()
    network = Energy()
    model, optimizer = run.wrap(network, torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True))
    common = torch.Generator().manual_seed(5)
    parts = [part.split(BATCH) for part in crystals(24 * BATCH, run.rank)]
    for kinds, places, energies in run.batches(list(zip(*parts, strict=True))):
        chance = torch.rand((), generator=common).pow(3)
        times = FEWEST + int(chance * (MOST - FEWEST + 1))
        optimizer.zero_grad()
        loss = nn.functional.l1_loss(model(kinds, places, times), energies)
        loss.backward()
        optimizer.step()
    run.close()


main()
