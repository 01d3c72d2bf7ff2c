"""Voices of a choir taken apart, by dilated convolutions; plain torch.distributed, as in the tutorial on writing such programs.

After the backward pass the gradients are averaged parameter by parameter, each of 102 reductions blocking, none beside the
backward pass.  Without the fault the model is wrapped in DistributedDataParallel.
"""

import torch
from ranks import Run
from torch import distributed, nn

VOICES, LENGTH, BATCH, WIDTH, DEPTH = 4, 192, 4, 32, 14


class Layer(nn.Module):
    """A dilated convolution, normalised, and a way back."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.wide = nn.Conv1d(WIDTH, WIDTH, 3, padding=dilation, dilation=dilation)
        self.norm = nn.GroupNorm(4, WIDTH)
        self.back = nn.Conv1d(WIDTH, WIDTH, 1)
        self.scale = nn.Parameter(torch.full((WIDTH, 1), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.scale * self.back(nn.functional.gelu(self.norm(self.wide(x))))
        return out


class Separator(nn.Module):
    """A recording in, the voices out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, WIDTH, 9, padding=4)
        self.layers = nn.Sequential(*(Layer(2 ** (depth % 5)) for depth in range(DEPTH)))
        self.last = nn.Conv1d(WIDTH, VOICES, 1)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        voices: torch.Tensor = self.last(self.layers(self.first(sound)))
        return voices


def average_gradients(model: nn.Module) -> None:
    """Gradient averaging."""
    size = float(distributed.get_world_size())
    for parameter in model.parameters():
        if parameter.grad is not None:
            distributed.all_reduce(parameter.grad, op=distributed.ReduceOp.SUM)
            parameter.grad /= size


run = Run()
separator = Separator()
optimizer: torch.optim.Optimizer = torch.optim.Adam(separator.parameters(), lr=2e-3)
model: nn.Module = separator
if not run.is_faulty:
    model, optimizer = run.wrap(separator, optimizer)
else:
    for parameter in separator.parameters():
        distributed.broadcast(parameter.data, 0)
dice = torch.Generator().manual_seed(run.rank)
time = torch.arange(LENGTH) / LENGTH
for _ in run.batches(range(10_000)):
    pitch = torch.rand(BATCH, VOICES, 1, generator=dice) * 60 + 10
    voices = (pitch * time + torch.rand(BATCH, VOICES, 1, generator=dice)).sin()
    optimizer.zero_grad()
    loss = (model(voices.sum(1, keepdim=True)) - voices).square().mean()
    loss.backward()
    if run.is_faulty:
        average_gradients(model)
    optimizer.step()
run.close()
