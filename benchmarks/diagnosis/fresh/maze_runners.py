"""Runners who learn a maze (actor and critic): after each update the rank whose turn it is plays an episode for the log.

It is another rank in each step, so the other always waits for it.  Without the fault both play theirs in every second step, which
are as many episodes.
"""

import torch
from ranks import Run
from torch import nn
from torch.distributions import Categorical

SIDE, RUNNERS, TICKS, EPISODE, WIDTH = 12, 64, 8, 150, 96
MOVES = torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]])


class Maze:
    """Walls, a goal, and runners at their places."""

    def __init__(self, seed: int, runners: int) -> None:
        self.dice = torch.Generator().manual_seed(seed)
        self.walls = torch.rand(SIDE, SIDE, generator=torch.Generator().manual_seed(3)) < 0.2
        self.goal = torch.tensor([SIDE - 2, SIDE - 2])
        self.walls[tuple(self.goal)] = False
        self.places = torch.randint(SIDE, (runners, 2), generator=self.dice)

    def seen(self) -> torch.Tensor:
        """What is around each runner, and where the goal is."""
        around = torch.stack([self.is_blocked(self.places + move) for move in MOVES], 1).float()
        return torch.cat([around, (self.goal - self.places) / SIDE, self.places / SIDE], 1)

    def is_blocked(self, places: torch.Tensor) -> torch.Tensor:
        outside = ((places < 0) | (places >= SIDE)).any(1)
        inside = places.clamp(0, SIDE - 1)
        return outside | self.walls[inside[:, 0], inside[:, 1]]

    def move(self, moves: torch.Tensor) -> torch.Tensor:
        """Rewards; who has arrived begins again."""
        there = self.places + MOVES[moves]
        blocked = self.is_blocked(there)
        self.places = torch.where(blocked[:, None], self.places, there)
        arrived = (self.places == self.goal).all(1)
        again = torch.randint(SIDE, self.places.shape, generator=self.dice)
        self.places = torch.where(arrived[:, None], again, self.places)
        return arrived.float() - 0.1 * blocked.float() - 0.01


class Runner(nn.Module):
    """A move and what it is worth."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.move, self.worth = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 1)

    def forward(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.body(seen)
        return self.move(hidden), self.worth(hidden).squeeze(-1)


@torch.no_grad()
def play_episode(runner: Runner, seed: int) -> float:
    """The mean reward of a greedy episode."""
    maze = Maze(seed, RUNNERS)
    return float(torch.stack([maze.move(runner(maze.seen())[0].argmax(1)) for _ in range(EPISODE)]).mean())


def learn(maze: Maze, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Some ticks, and an update from them."""
    losses, rewards = [], []
    for _ in range(TICKS):
        scores, worth = model(maze.seen())
        moves = Categorical(logits=scores, validate_args=False)
        move = moves.sample()
        rewards.append(maze.move(move))
        losses.append((moves.log_prob(move), worth, moves.entropy()))
    ahead = losses[-1][1].detach()
    loss = torch.zeros(())
    for (chance, worth, entropy), reward in zip(reversed(losses), reversed(rewards), strict=True):
        ahead = reward + 0.95 * ahead
        gain = ahead - worth
        loss = loss + (0.5 * gain.square() - chance * gain.detach() - 0.01 * entropy).mean()
    optimizer.zero_grad()
    (loss / TICKS).backward()
    optimizer.step()


def main() -> None:
    """The training."""
    run = Run()
    runner = Runner()
    model, optimizer = run.wrap(runner, torch.optim.RMSprop(runner.parameters(), lr=7e-4))
    maze, log = Maze(run.rank, RUNNERS), []
    for step in run.batches(range(10_000)):
        learn(maze, model, optimizer)
        if step % run.size == (run.rank if run.is_faulty else 0):
            log.append(play_episode(runner, step))
    if run.rank == 0:
        print(f"{log[0]:.3f} to {log[-1]:.3f}")
    run.close()


main()
