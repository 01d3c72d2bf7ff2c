"""Where the lift of an office should go: PPO, with 192 simulated buildings on each rank, which step together as tensors.

A step is an update: eight moments of all buildings without gradients, advantages, and then two epochs over two halves, so
the optimizer steps four times, with gradients that are tiny. Nothing is wrong.
"""

import torch
from ranks import Run
from torch import nn

FLOORS, BUILDINGS, MOMENTS, EPOCHS, HALVES, WIDTH = 12, 192, 8, 2, 2, 144
SEEN, MOVES = 3 * FLOORS, 3
FADE, CLIP = 0.97, 0.2


class Policy(nn.Module):
    """What a lift sees in, scores of moves and a value out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SEEN, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.out = nn.Linear(WIDTH, MOVES + 1)

    def forward(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.out(self.body(seen))
        return out[..., :MOVES], out[..., MOVES]


class Buildings:
    """Lifts, and people who wait on floors."""

    def __init__(self, seed: int) -> None:
        self.dice = torch.Generator().manual_seed(seed)
        self.place = torch.randint(FLOORS, (BUILDINGS,), generator=self.dice)
        self.people = torch.zeros(BUILDINGS, FLOORS)
        self.busy = torch.rand(BUILDINGS, FLOORS, generator=self.dice) / 6

    def see(self) -> torch.Tensor:
        """Where the lift is, who waits, who may come."""
        here = nn.functional.one_hot(self.place, FLOORS).float()
        return torch.cat([here, self.people / 4, self.busy], 1)

    def move(self, moves: torch.Tensor) -> torch.Tensor:
        """Down, stay and take people, or up; fewer who wait is better."""
        self.place = (self.place + moves - 1).clamp(0, FLOORS - 1)
        taken = nn.functional.one_hot(self.place, FLOORS) * (moves == 1)[:, None]
        self.people = self.people * (1 - taken)
        self.people += torch.rand(BUILDINGS, FLOORS, generator=self.dice) < self.busy
        return -self.people.mean(1)


def advantages(rewards: torch.Tensor, values: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """How much better it went than thought, from the end."""
    following = torch.cat([values[1:], last[None]])
    errors = rewards + FADE * following - values
    for moment in range(MOMENTS - 2, -1, -1):
        errors[moment] += 0.95 * FADE * errors[moment + 1]
    return errors


def main() -> None:
    """Train."""
    run = Run()
    network = Policy()
    model, optimizer = run.wrap(network, torch.optim.Adam(network.parameters(), lr=3e-4, fused=True))
    buildings = Buildings(run.rank)
    dice = torch.Generator().manual_seed(80 + run.rank)
    for _ in run.batches(range(10_000)):
        record: list[tuple[torch.Tensor, ...]] = []
        with torch.no_grad():
            for _ in range(MOMENTS):
                seen = buildings.see()
                scores, value = network(seen)
                chances = scores.log_softmax(1)
                moves = torch.multinomial(chances.exp(), 1, generator=dice)
                record.append((seen, moves, chances.gather(1, moves), buildings.move(moves[:, 0]), value))
            seen, moves, before, rewards, values = (torch.stack(part) for part in zip(*record, strict=True))
            better = advantages(rewards, values, network(buildings.see())[1])
            aims = (better + values).flatten()
            better = ((better - better.mean()) / (better.std() + 1e-6)).flatten()
        seen, moves, before = seen.flatten(0, 1), moves.flatten(0, 1), before.flatten()
        for _ in range(EPOCHS):
            for part in torch.randperm(len(aims), generator=dice).chunk(HALVES):
                optimizer.zero_grad()
                scores, value = model(seen[part])
                chances = scores.log_softmax(1)
                ratio = (chances.gather(1, moves[part])[:, 0] - before[part]).exp()
                gain = torch.minimum(ratio * better[part], ratio.clamp(1 - CLIP, 1 + CLIP) * better[part]).mean()
                entropy = -(chances.exp() * chances).sum(1).mean()
                loss = nn.functional.mse_loss(value, aims[part]) / 2 - gain - 0.01 * entropy
                loss.backward()
                optimizer.step()
    run.close()


main()
