"""Which moth a wing is of: a new head on a body of patches that is frozen, with a learning rate that is looked for first.

The first 40 steps raise the learning rate from step to step; then the head starts again with a third of the rate at which
the loss was least. Wings are turned and lit anew each time they are seen, so the features of the frozen body, which is
under no_grad(), are different each time. Nothing is wrong.
"""

import copy

import torch
from ranks import Run
from torch import nn

SIDE, PATCH, BATCH, WIDTH, MOTHS, LOOKS = 56, 8, 32, 96, 36, 40
LEAST, MOST = 1e-4, 1.0


class Body(nn.Module):
    """Wings in, features out; learned elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(3 * PATCH * PATCH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 3 * WIDTH, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    @torch.no_grad()
    def forward(self, wings: torch.Tensor) -> torch.Tensor:
        rows = wings.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH).permute(0, 2, 3, 1, 4, 5)
        features: torch.Tensor = self.body(self.enter(rows.reshape(len(wings), -1, 3 * PATCH * PATCH))).mean(1)
        return features


class RateFinder:
    """Raises the rate exponentially, and knows where the loss was least."""

    def __init__(self, optimizer: torch.optim.Optimizer, steps: int) -> None:
        self.optimizer, self.steps = optimizer, steps
        self.rates = torch.logspace(0, 1, steps, base=MOST / LEAST).mul(LEAST).tolist()
        self.losses: list[torch.Tensor] = []

    def set(self, rate: float) -> None:
        """For all groups."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def best(self) -> float:
        """A third of the rate of the least smoothed loss."""
        losses = torch.stack(self.losses)
        smooth = nn.functional.avg_pool1d(losses[None], 5, 1, 2, count_include_pad=False)[0]
        return float(self.rates[int(smooth.argmin())]) / 3


def augment(wings: torch.Tensor, dice: torch.Generator) -> torch.Tensor:
    """Turned, mirrored, lit."""
    turns, flips = torch.randint(4, (), generator=dice).item(), torch.rand((), generator=dice) < 0.5
    wings = torch.rot90(wings, int(turns), (2, 3))
    light = 1 + 0.2 * torch.randn(len(wings), 3, 1, 1, generator=dice)
    return (wings.flip(3) if flips else wings) * light


def main() -> None:
    """Look for a rate, then train."""
    run = Run()
    body = Body().eval().requires_grad_(requires_grad=False)
    head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 192), nn.GELU(), nn.Linear(192, MOTHS))
    start = copy.deepcopy(head.state_dict())
    optimizer: torch.optim.Optimizer = torch.optim.SGD(head.parameters(), lr=LEAST, momentum=0.9)
    model, optimizer = run.wrap(head, optimizer)
    finder = RateFinder(optimizer, LOOKS)
    dice = torch.Generator().manual_seed(run.rank)
    moths = torch.randint(MOTHS, (20 * BATCH,), generator=dice)
    wings = torch.rand(20 * BATCH, 3, SIDE, SIDE, generator=dice) + moths[:, None, None, None] / MOTHS
    for batch, truth in run.batches(list(zip(wings.split(BATCH), moths.split(BATCH), strict=True))):
        if run.step <= LOOKS:
            finder.set(finder.rates[run.step - 1])
        elif run.step == LOOKS + 1:
            rate = run.hvd.broadcast_object(finder.best(), root_rank=0)
            head.load_state_dict(start)
            optimizer.state.clear()
            finder.set(rate)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(body(augment(batch, dice))), truth)
        loss.backward()
        optimizer.step()
        if run.step <= LOOKS:
            finder.losses.append(loss.detach())
    run.close()


main()
