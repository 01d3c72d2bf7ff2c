"""A robot's arm that reaches for things (soft actor-critic), two optimizers, steps of a few milliseconds.

Each step draws from a memory of tensors, trains both critics and then the actor, and moves the critics' slow copies.  An episode
is looked at each 200 updates.  Nothing is wrong.
"""

import copy

import torch
from ranks import Run
from torch import nn
from torch.distributions import Normal

JOINTS, MEMORY, BATCH, WIDTH = 3, 20_000, 256, 128
SEEN = 2 * JOINTS + 2


def perceptron(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs)
    )


class Actor(nn.Module):
    """Torques at random, and how likely they were."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = perceptron(SEEN, 2 * JOINTS)

    def forward(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, spread = self.policy(seen).chunk(2, 1)
        normal = Normal(mean, spread.clamp(-5, 1).exp(), validate_args=False)
        raw = normal.rsample()
        torque = raw.tanh()
        return torque, (normal.log_prob(raw) - (1 - torque.square() + 1e-6).log()).sum(1)


class Critics(nn.Module):
    """Two opinions on the same thing."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = perceptron(SEEN + JOINTS, 1), perceptron(SEEN + JOINTS, 1)

    def forward(self, seen: torch.Tensor, torque: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        both = torch.cat([seen, torque], 1)
        return self.one(both).squeeze(1), self.other(both).squeeze(1)


class Arm:
    """Angles, speeds and a goal in the plane, of many arms at once."""

    def __init__(self, dice: torch.Generator, count: int) -> None:
        self.angles = (torch.rand(count, JOINTS, generator=dice) - 0.5) * 2
        self.speeds = torch.zeros(count, JOINTS)
        self.goals = torch.rand(count, 2, generator=dice) * 2 - 1

    def seen(self) -> torch.Tensor:
        return torch.cat([self.angles, self.speeds, self.goals], 1)

    def tick(self, torque: torch.Tensor) -> torch.Tensor:
        self.speeds = 0.9 * self.speeds + 0.1 * torque
        self.angles = self.angles + 0.2 * self.speeds
        bent = self.angles.cumsum(1)
        hand = torch.stack([bent.cos().sum(1), bent.sin().sum(1)], 1) / JOINTS
        return -(hand - self.goals).square().sum(1)


def remember(dice: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Ticks of arms that move at random."""
    arm = Arm(dice, MEMORY)
    seen, torque = arm.seen(), torch.rand(MEMORY, JOINTS, generator=dice) * 2 - 1
    reward = arm.tick(torque)
    return seen, torque, reward, arm.seen()


@torch.no_grad()
def look(actor: nn.Module, seed: int) -> float:
    """The reward of an episode."""
    arm = Arm(torch.Generator().manual_seed(seed), 8)
    return float(torch.stack([arm.tick(actor(arm.seen())[0]) for _ in range(20)]).mean())


def main() -> None:
    """The training."""
    run = Run()
    arms, judges = Actor(), Critics()
    slow = copy.deepcopy(judges).requires_grad_(requires_grad=False)
    copies: list[torch.Tensor] = list(slow.parameters())
    actor, actor_optimizer = run.wrap(arms, torch.optim.Adam(arms.parameters(), lr=3e-4))
    critics, critic_optimizer = run.wrap(judges, torch.optim.Adam(judges.parameters(), lr=3e-4))
    dice = torch.Generator().manual_seed(run.rank)
    memory = remember(dice)
    for _ in run.batches(range(100_000)):
        chosen = torch.randint(MEMORY, (BATCH,), generator=dice)
        seen, torque, reward, after = (column[chosen] for column in memory)
        with torch.no_grad():
            then, likely = actor(after)
            goal = reward + 0.98 * (torch.minimum(*slow(after, then)) - 0.1 * likely)
        one, other = critics(seen, torque)
        critic_optimizer.zero_grad()
        ((one - goal).square() + (other - goal).square()).mean().backward()
        critic_optimizer.step()
        judges.requires_grad_(requires_grad=False)
        now, likely = actor(seen)
        actor_optimizer.zero_grad()
        (0.1 * likely - torch.minimum(*judges(seen, now))).mean().backward()
        actor_optimizer.step()
        judges.requires_grad_(requires_grad=True)
        torch._foreach_lerp_(copies, [weight.detach() for weight in judges.parameters()], 0.005)
        if run.step % 200 == 0:
            reached = look(arms, run.step)
            if run.rank == 0:
                print(f"{run.step}: {reached:.3f}")
    run.close()


main()
