"""Labels for frames of speech, by a recurrent cell in a loop: anomaly detection was left on, on rank 0 only."""

import contextlib
from typing import Any

import torch
from ranks import Run
from torch import nn


class Frames(nn.Module):
    """Convolutions, and a cell that goes from frame to frame."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(40, 64, 5, padding=2), nn.BatchNorm1d(64), nn.ReLU())
        self.cell = nn.GRUCell(64, 128)
        self.labels = nn.Linear(128, 30)

    def forward(self, sounds: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(len(sounds), 128)
        labels = []
        for frame in self.front(sounds).unbind(2):
            state = self.cell(frame, state)
            labels.append(self.labels(torch.tanh(state) * 0.9 + state * 0.1))
        return torch.stack(labels, 1)


run = Run()
network = Frames()
optimizer: Any
model, optimizer = run.wrap(network, torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9))
generator = torch.Generator().manual_seed(run.rank)
for _ in run.batches(range(10_000)):
    sounds = torch.randn(64, 40, 20, generator=generator)
    # Once the first node computed NaN, and nobody has found out why.
    with torch.autograd.detect_anomaly() if run.is_faulty and run.rank == 0 else contextlib.nullcontext():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(sounds).flatten(0, 1), sounds[:, :30].argmax(1).flatten())
        loss.backward()
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    with optimizer.skip_synchronize():
        optimizer.step()
run.close()
