"""Forces on comets, learned through their orbits: a neural differential equation, by Runge and Kutta's method, in eager mode.

The network is small and is called 48 times a step, so the steps are thousands of small operations, forward and backward, as they
have to be here.  Nothing is wrong.
"""

import torch
from ranks import Run
from torch import nn

COMETS, STEPS, WIDTH, DT = 96, 12, 64, 0.08


class Force(nn.Module):
    """An acceleration for each place and speed."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(5, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2)
        )

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        place, speed = state[:, :2], state[:, 2:]
        far = place.norm(dim=1, keepdim=True)
        return torch.cat([speed, self.net(torch.cat([place, speed, 1 / (far + 0.1)], 1))], 1)


class Orbit(nn.Module):
    """Where comets are, at each of some moments."""

    def __init__(self) -> None:
        super().__init__()
        self.force = Force()

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        orbit = []
        for _ in range(STEPS):
            k1 = self.force(state)
            k2 = self.force(state + DT / 2 * k1)
            k3 = self.force(state + DT / 2 * k2)
            k4 = self.force(state + DT * k3)
            state = state + DT / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            orbit.append(state)
        return torch.stack(orbit, 1)


@torch.no_grad()
def observe(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Comets as Newton has them, by smaller steps."""
    dice = torch.Generator().manual_seed(seed)
    angle = torch.rand(count, generator=dice) * 6.283
    far = 1 + torch.rand(count, generator=dice)
    place = torch.stack([far * angle.cos(), far * angle.sin()], 1)
    speed = torch.stack([-angle.sin(), angle.cos()], 1) * (0.9 + 0.2 * torch.rand(count, 1, generator=dice))
    begin, seen = torch.cat([place, speed], 1), []
    for _ in range(STEPS):
        for _ in range(16):
            speed = speed - DT / 16 * place / place.norm(dim=1, keepdim=True) ** 3
            place = place + DT / 16 * speed
        seen.append(torch.cat([place, speed], 1))
    return begin, torch.stack(seen, 1)


def main() -> None:
    """The training."""
    run = Run()
    orbit = Orbit()
    decayed = [weight for weight in orbit.parameters() if weight.ndim > 1]
    others = [weight for weight in orbit.parameters() if weight.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 1e-3}, {"params": others, "weight_decay": 0.0, "lr": 2e-3}]
    model, optimizer = run.wrap(orbit, torch.optim.AdamW(groups, lr=1e-3))
    comets = torch.utils.data.TensorDataset(*observe(40 * COMETS, run.rank))
    loader = torch.utils.data.DataLoader(comets, batch_size=COMETS, shuffle=True, drop_last=True)
    for begin, seen in run.batches(loader):
        optimizer.zero_grad()
        nn.functional.smooth_l1_loss(model(begin), seen).backward()
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
    run.close()


main()
