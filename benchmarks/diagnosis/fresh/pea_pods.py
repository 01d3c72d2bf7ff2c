"""Where the peas in a pod are, from an X-ray along it: guesses that are matched with the truth before there is a loss.

The matching is greedy, in Python, over a dozen lists of some distances, and takes a hundredth of a step. Gradients are
clipped, the learning rate follows a cosine. Nothing is wrong.
"""

import torch
from ranks import Run
from torch import nn

SLICES, PIXELS, BATCH, WIDTH, GUESSES, FEWEST, MOST = 72, 20, 14, 88, 8, 3, 6


class Peas(nn.Module):
    """Slices of pods in, places and confidences of guesses out."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(PIXELS, WIDTH)
        self.along = nn.Parameter(torch.randn(SLICES, WIDTH) / 10)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.asked = nn.Parameter(torch.randn(GUESSES, WIDTH))
        self.look = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.out = nn.Linear(WIDTH, 2)

    def forward(self, pods: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        slices = self.body(self.enter(pods) + self.along)
        found, _ = self.look(self.asked.expand(len(pods), -1, -1), slices, slices, need_weights=False)
        place, sure = self.out(found).unbind(2)
        return place.sigmoid(), sure


def match(distances: list[list[float]]) -> list[tuple[int, int]]:
    """Pairs of a guess and a pea, nearest first."""
    order = sorted((value, guess, pea) for guess, row in enumerate(distances) for pea, value in enumerate(row))
    guesses: set[int] = set()
    peas: set[int] = set()
    pairs: list[tuple[int, int]] = []
    for _, guess, pea in order:
        if guess not in guesses and pea not in peas:
            guesses.add(guess)
            peas.add(pea)
            pairs.append((guess, pea))
    return pairs


def match_all(place: torch.Tensor, truth: torch.Tensor, counts: list[int]) -> tuple[torch.Tensor, ...]:
    """Which pod, which guess, which pea."""
    distances = (place.detach()[:, :, None] - truth[:, None]).abs().tolist()
    triples = [
        (pod, guess, pea)
        for pod, (rows, count) in enumerate(zip(distances, counts, strict=True))
        for guess, pea in match([row[:count] for row in rows])
    ]
    return torch.tensor(triples).unbind(1)


def make_pods(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Bumps along a pod."""
    dice = torch.Generator().manual_seed(seed)
    counts = torch.randint(FEWEST, MOST + 1, (count,), generator=dice)
    truth = torch.rand(count, MOST, generator=dice)
    bumps = torch.exp(-((torch.linspace(0, 1, SLICES)[None, :, None] - truth[:, None]) * 20).square())
    shade = (bumps * (torch.arange(MOST) < counts[:, None])[:, None]).sum(2, keepdim=True)
    return shade + 0.3 * torch.randn(count, SLICES, PIXELS, generator=dice), truth, counts


def main() -> None:
    """Train."""
    run = Run()
    network = Peas()
    model, optimizer = run.wrap(network, torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, run.args.steps)
    parts = [part.split(BATCH) for part in make_pods(20 * BATCH, run.rank)]
    for pods, truth, counts in run.batches(list(zip(*parts, strict=True))):
        place, sure = model(pods)
        pod, guess, pea = match_all(place, truth, counts.tolist())
        is_pea = torch.zeros_like(sure).index_put_((pod, guess), torch.ones(()))
        near = nn.functional.smooth_l1_loss(place[pod, guess], truth[pod, pea], beta=0.05)
        loss = near + 0.2 * nn.functional.binary_cross_entropy_with_logits(sure, is_pea)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0, foreach=True)
        optimizer.step()
        schedule.step()
    run.close()


main()
