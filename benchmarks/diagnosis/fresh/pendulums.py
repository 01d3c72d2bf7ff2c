"""Pendulums that learn to stand (PPO): each step plays 16 ticks with all of 192 pendulums at once, then learns from them.

A step has 16 small forward passes without gradients, for the policy has to act, and two with.  Nothing is wrong.
"""

import math

import torch
from ranks import Run
from torch import nn
from torch.distributions import Normal

PENDULUMS, TICKS, EPOCHS, WIDTH = 192, 16, 2, 96
GAMMA, LAMBDA, CLIP = 0.97, 0.9, 0.2


class Actor(nn.Module):
    """Where a pendulum is in; a push and the value of being there out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.push, self.value = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)
        self.spread = nn.Parameter(torch.zeros(1))

    def forward(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = self.body(seen)
        return self.push(hidden).squeeze(-1), self.spread.exp(), self.value(hidden).squeeze(-1)


class Pendulums:
    """All of them, as tensors."""

    def __init__(self, seed: int) -> None:
        dice = torch.Generator().manual_seed(seed)
        self.angle = (torch.rand(PENDULUMS, generator=dice) - 0.5) * 2 * math.pi
        self.speed = torch.rand(PENDULUMS, generator=dice) - 0.5

    def seen(self) -> torch.Tensor:
        return torch.stack([self.angle.cos(), self.angle.sin(), self.speed / 4], 1)

    def tick(self, push: torch.Tensor) -> torch.Tensor:
        """Rewards."""
        push = push.clamp(-2, 2)
        off = torch.remainder(self.angle + math.pi, 2 * math.pi) - math.pi
        reward = -(off.square() + 0.1 * self.speed.square() + 0.001 * push.square())
        self.speed = (self.speed + 0.05 * (15 * self.angle.sin() + 3 * push)).clamp(-8, 8)
        self.angle = self.angle + 0.05 * self.speed
        return reward


def advantages(rewards: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Generalised, from the last tick to the first."""
    found = torch.zeros_like(rewards)
    ahead = torch.zeros(PENDULUMS)
    for tick in reversed(range(TICKS)):
        ahead = rewards[tick] + GAMMA * values[tick + 1] - values[tick] + GAMMA * LAMBDA * ahead
        found[tick] = ahead
    return found


def main() -> None:
    """The training."""
    run = Run()
    actor = Actor()
    model, optimizer = run.wrap(actor, torch.optim.Adam(actor.parameters(), lr=3e-4))
    pendulums = Pendulums(run.rank)
    for _ in run.batches(range(10_000)):
        seen, pushes, chances, rewards, values = [], [], [], [], []
        with torch.no_grad():
            for _tick in range(TICKS):
                seen.append(pendulums.seen())
                mean, spread, value = actor(seen[-1])
                pushes.append(torch.normal(mean, spread.expand_as(mean)))
                chances.append(Normal(mean, spread, validate_args=False).log_prob(pushes[-1]))
                rewards.append(pendulums.tick(pushes[-1]) / 8)
                values.append(value)
            values.append(actor(pendulums.seen())[2])
            gains = advantages(torch.stack(rewards), torch.stack(values))
            returns = gains + torch.stack(values[:-1])
            gains = (gains - gains.mean()) / (gains.std() + 1e-6)
        all_seen, all_pushes, before = torch.stack(seen), torch.stack(pushes), torch.stack(chances)
        for _epoch in range(EPOCHS):
            optimizer.zero_grad()
            mean, spread, value = model(all_seen)
            ratio = (Normal(mean, spread, validate_args=False).log_prob(all_pushes) - before).exp()
            gain = torch.minimum(ratio * gains, ratio.clamp(1 - CLIP, 1 + CLIP) * gains).mean()
            (0.5 * (value - returns).square().mean() - gain).backward()
            optimizer.step()
    run.close()


main()
