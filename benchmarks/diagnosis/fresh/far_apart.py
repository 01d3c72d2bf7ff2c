"""Characters of a language by a convolutional model on ranks that see each other every tenth step only (DiLoCo).

In between each goes its own way, without DistributedDataParallel; then what they have moved is averaged in one flat tensor, and
an outer optimizer with Nesterov momentum takes the step.  Nothing is wrong.
"""

import torch
from ranks import Run
from torch import distributed, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

LETTERS, LENGTH, BATCH, WIDTH, INNER = 64, 80, 10, 80, 10


class Gated(nn.Module):
    """A causal convolution that gates itself."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(WIDTH, 2 * WIDTH, 3, dilation=dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value, gate = self.conv(nn.functional.pad(x, (self.pad, 0))).chunk(2, 1)
        out: torch.Tensor = x + value * gate.sigmoid()
        return out


class Letters(nn.Module):
    """Letters in, scores of the following letters out."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, WIDTH)
        self.body = nn.Sequential(*(Gated(2**depth) for depth in range(4)))
        self.scores = nn.Linear(WIDTH, LETTERS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.scores(self.body(self.letters(text).transpose(1, 2)).transpose(1, 2))
        return out


class Outer:
    """The optimizer of what all ranks have in common."""

    def __init__(self, model: nn.Module, rate: float = 0.7, momentum: float = 0.9) -> None:
        self.model = model
        self.common = parameters_to_vector(model.parameters()).detach().clone()
        distributed.broadcast(self.common, 0)
        vector_to_parameters(self.common, model.parameters())
        self.common.requires_grad_()
        self.sgd = torch.optim.SGD([self.common], lr=rate, momentum=momentum, nesterov=True)

    @torch.no_grad()
    def step(self) -> None:
        moved = self.common - parameters_to_vector(self.model.parameters())
        distributed.all_reduce(moved)
        self.common.grad = moved / distributed.get_world_size()
        self.sgd.step()
        vector_to_parameters(self.common.detach().clone(), self.model.parameters())


run = Run()
model = Letters()
outer = Outer(model)
inner = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=0.1)
text = torch.randint(LETTERS, (200_000,), generator=torch.Generator().manual_seed(run.rank))
dice = torch.Generator().manual_seed(40 + run.rank)
for _ in run.batches(range(10_000)):
    starts = torch.randint(len(text) - LENGTH - 1, (BATCH, 1), generator=dice)
    letters = text[starts + torch.arange(LENGTH + 1)]
    inner.zero_grad()
    nn.functional.cross_entropy(model(letters[:, :-1]).flatten(0, 1), letters[:, 1:].flatten()).backward()
    inner.step()
    if run.step % INNER == 0:
        outer.step()
run.close()
