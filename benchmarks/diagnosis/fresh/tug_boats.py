"""Tug boats that learn to push a ship into its berth (double deep Q-learning): 24 ships at once play a tick for each update.

Transitions go into a ring of tensors, and what is learned from is drawn anew for each update; the target network is renewed after
each 25th.  Nothing is wrong.
"""

import copy

import torch
from ranks import Run
from torch import nn

SHIPS, STATE, ACTIONS, WIDTH, BATCH, ROOM, RENEW = 24, 8, 9, 320, 256, 6000, 25
PUSHES = torch.tensor([[x, y] for x in (-1.0, 0.0, 1.0) for y in (-1.0, 0.0, 1.0)])


class Harbour:
    """Ships that drift; how near they are to the berth is the reward."""

    def __init__(self, seed: int) -> None:
        self.dice = torch.Generator().manual_seed(seed)
        self.places, self.speeds, self.wind = torch.zeros(3, SHIPS, 2)
        self.begin(torch.ones(SHIPS, dtype=torch.bool))

    def begin(self, ended: torch.Tensor) -> None:
        new = torch.rand(3, SHIPS, 2, generator=self.dice) * 2 - 1
        self.places = torch.where(ended[:, None], new[0] * 4, self.places)
        self.speeds = torch.where(ended[:, None], new[1] * 0.2, self.speeds)
        self.wind = torch.where(ended[:, None], new[2] * 0.05, self.wind)

    def seen(self) -> torch.Tensor:
        return torch.cat([self.places, self.speeds, self.wind, self.places.square()], 1)

    def push(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.speeds = 0.95 * self.speeds + 0.05 * PUSHES[actions] + self.wind
        self.places = self.places + self.speeds
        far = self.places.norm(dim=1)
        ended = (far < 0.2) | (far > 8)
        return (far < 0.2).float() * 10 - 0.1 * far, ended


class Ring:
    """The last transitions."""

    def __init__(self) -> None:
        self.before, self.after = torch.zeros(2, ROOM, STATE)
        self.actions = torch.zeros(ROOM, dtype=torch.long)
        self.rewards, self.ended = torch.zeros(2, ROOM)
        self.place, self.count = 0, 0

    def put(self, before: torch.Tensor, actions: torch.Tensor, results: tuple[torch.Tensor, ...]) -> None:
        rows = slice(self.place, self.place + SHIPS)
        self.before[rows], self.actions[rows] = before, actions
        self.rewards[rows], self.ended[rows], self.after[rows] = results
        self.place = (self.place + SHIPS) % ROOM
        self.count = min(self.count + SHIPS, ROOM)


def make_values() -> nn.Sequential:
    """What each push is worth."""
    body = [nn.Linear(STATE, WIDTH), nn.ReLU()]
    for _ in range(3):
        body += [nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU()]
    return nn.Sequential(*body, nn.Linear(WIDTH, ACTIONS))


def main() -> None:
    """Play and learn."""
    run = Run()
    values = make_values()
    model, optimizer = run.wrap(values, torch.optim.Adam(values.parameters(), lr=3e-4))
    target = copy.deepcopy(values).requires_grad_(requires_grad=False)
    harbour, ring = Harbour(run.rank), Ring()
    dice = torch.Generator().manual_seed(50 + run.rank)
    for _ in run.batches(range(10_000)):
        with torch.no_grad():
            before = harbour.seen()
            best = model(before).argmax(1)
            chance = torch.rand(SHIPS, generator=dice) < max(0.1, 1 - run.step / 100)
            actions = torch.where(chance, torch.randint(ACTIONS, (SHIPS,), generator=dice), best)
            rewards, ended = harbour.push(actions)
            ring.put(before, actions, (rewards, ended.float(), harbour.seen()))
            harbour.begin(ended)
        drawn = torch.randint(ring.count, (BATCH,), generator=dice)
        after = ring.after[drawn]
        with torch.no_grad():
            ahead = target(after).gather(1, model(after).argmax(1, keepdim=True)).squeeze(1)
            wanted = ring.rewards[drawn] + 0.97 * (1 - ring.ended[drawn]) * ahead
        worth = model(ring.before[drawn]).gather(1, ring.actions[drawn, None]).squeeze(1)
        optimizer.zero_grad()
        nn.functional.smooth_l1_loss(worth, wanted).backward()
        nn.utils.clip_grad_norm_(values.parameters(), 10.0)
        optimizer.step()
        if run.step % RENEW == 0:
            target.load_state_dict(values.state_dict())
    run.close()


main()
