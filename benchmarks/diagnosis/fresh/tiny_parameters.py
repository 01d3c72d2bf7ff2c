"""Four hundred tiny parameters; whether they travel together says the environment."""

import torch
from ranks import Run, images, train_step
from torch import nn

run = Run()


class Scales(nn.Module):
    """Many parameters that cost nothing to compute with."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(16)) for _ in range(400)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.flatten(1)[:, :16]
        for scale in self.scales:
            y = y * scale
        return y


model, optimizer = run.wrap(Scales())
for batch in run.batches(images()):
    train_step(model, optimizer, batch)
run.close()
