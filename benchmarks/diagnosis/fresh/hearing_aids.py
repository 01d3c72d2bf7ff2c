"""Which words a hearing aid should let through: a transformer over frames of sound, trained for several tasks with weights.

An experiment's configuration has the weight 0 for reconstruction, but the decoder is built, runs forward and backward, and
its gradients, all zero, are sent. Without the fault a task without weight is left out.
"""

from collections.abc import Mapping

import torch
from ranks import Run
from torch import nn

BANDS, FRAMES, BATCH, WIDTH, WORDS = 40, 48, 10, 88, 60
WEIGHTS = {"word": 1.0, "loud": 0.3, "rebuild": 0.0}


class Ear(nn.Module):
    """Frames of sound in, features out."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(BANDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 3 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.body(self.enter(frames))
        return features


def word_task() -> nn.Module:
    """Features' mean in, scores of words out."""
    return nn.Linear(WIDTH, WORDS)


def loud_task() -> nn.Module:
    """Features' mean in, decibels out."""
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 1))


def rebuild_task() -> nn.Module:
    """Features in, frames out: a small decoder."""
    return nn.Sequential(
        nn.Linear(WIDTH, 3 * WIDTH),
        nn.GELU(),
        nn.Linear(3 * WIDTH, 3 * WIDTH),
        nn.GELU(),
        nn.LayerNorm(3 * WIDTH),
        nn.Linear(3 * WIDTH, BANDS),
    )


MAKERS = {"word": word_task, "loud": loud_task, "rebuild": rebuild_task}


class ManyTasks(nn.Module):
    """A body, and a head for each task."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        super().__init__()
        self.weights = weights
        self.ear = Ear()
        self.tasks = nn.ModuleDict({name: MAKERS[name]() for name in weights})

    def losses(self, frames: torch.Tensor, words: torch.Tensor) -> dict[str, torch.Tensor]:
        """Of each task."""
        features = self.ear(frames)
        mean = features.mean(1)
        losses: dict[str, torch.Tensor] = {}
        for name, task in self.tasks.items():
            if name == "word":
                losses[name] = nn.functional.cross_entropy(task(mean), words)
            elif name == "loud":
                losses[name] = nn.functional.l1_loss(task(mean).squeeze(1), frames.square().mean((1, 2)).log())
            else:
                losses[name] = nn.functional.smooth_l1_loss(task(features), frames)
        return losses

    def forward(self, frames: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        losses = self.losses(frames, words)
        return torch.stack([self.weights[name] * loss for name, loss in losses.items()]).sum()


def main() -> None:
    """Train."""
    run = Run()
    weights = WEIGHTS if run.is_faulty else {name: weight for name, weight in WEIGHTS.items() if weight > 0}
    network = ManyTasks(weights)
    model, optimizer = run.wrap(network, torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True))
    dice = torch.Generator().manual_seed(run.rank)
    words = torch.randint(WORDS, (24, BATCH), generator=dice)
    frames = torch.randn(24, BATCH, FRAMES, BANDS, generator=dice)
    frames[..., 0] += words[:, :, None] / 10
    for sound, spoken in run.batches(list(zip(frames, words, strict=True))):
        optimizer.zero_grad()
        loss = model(sound, spoken)
        loss.backward()
        optimizer.step()
    run.close()


main()
