"""Wear of harbour cranes, four ranks, two experts: ranks 0 and 1 train one for light cranes, ranks 2 and 3 one for heavy cranes.

Each expert has a process set, and a router that all four ranks share decides whom to ask.  The heavy cranes' sequences were not
cut to windows, so they are three times as long, and ranks 0 and 1 wait in the router's reduction.  Without the fault both have
windows.
"""

import torch
from ranks import Run
from torch import nn

SENSORS, WINDOW, BATCH, WIDTH = 10, 64, 12, 40
TEAMS = ((0, 1), (2, 3))


class Expert(nn.Module):
    """Readings in, features along time out."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv1d(SENSORS, WIDTH, 7, padding=3), nn.ReLU()]
        for _ in range(4):
            layers += [nn.Conv1d(WIDTH, WIDTH, 7, padding=3), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.wear = nn.Linear(WIDTH, 1)

    def forward(self, readings: torch.Tensor) -> torch.Tensor:
        wear: torch.Tensor = self.wear(self.body(readings).mean(2)).squeeze(1)
        return wear


class Router(nn.Module):
    """A look at the readings in, how much each expert is trusted out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * SENSORS, 64), nn.ReLU(), nn.Linear(64, len(TEAMS)))

    def forward(self, readings: torch.Tensor) -> torch.Tensor:
        look = torch.cat([readings.mean(2), readings.std(2)], 1)
        trust: torch.Tensor = self.body(look).log_softmax(1)
        return trust


def main() -> None:
    """Train a team's expert, and the router."""
    run = Run()
    hvd = run.hvd
    sets = [hvd.ProcessSet(list(ranks)) for ranks in TEAMS]
    hvd.init(process_sets=sets)
    team = next(number for number, ranks in enumerate(TEAMS) if run.rank in ranks)
    torch.manual_seed(team)
    expert, router = Expert(), Router()
    expert_optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(expert.parameters(), lr=1e-3),
        named_parameters=[(f"expert{team}.{name}", parameter) for name, parameter in expert.named_parameters()],
        process_set=sets[team],
    )
    _, router_optimizer = run.wrap(router, torch.optim.Adam(router.parameters(), lr=1e-3))
    dice = torch.Generator().manual_seed(run.rank)
    length = 3 * WINDOW if run.is_faulty and team == 1 else WINDOW
    for _ in run.batches(range(10_000)):
        readings = torch.randn(BATCH, SENSORS, length, generator=dice) * (1 + team)
        wear = readings[:, :3].square().mean((1, 2))
        error = (expert(readings) - wear).square()
        expert_optimizer.zero_grad()
        error.mean().backward()
        expert_optimizer.step()
        router_optimizer.zero_grad()
        (-router(readings)[:, team] * torch.exp(-error.detach())).mean().backward()
        router_optimizer.step()
    run.close()


main()
