"""An experiment's log: norms and histograms of all gradients and weights are written as a line of JSON in every step.

Without the fault every fiftieth step is logged.
"""

import json
import tempfile
from typing import IO, Any

import numpy as np
import torch
from ranks import Run
from torch import nn

WIDTH, BATCH = 320, 256


def write(log: IO[str], step: int, loss: torch.Tensor, model: nn.Module) -> None:
    record: dict[str, Any] = {"step": step, "loss": float(loss)}
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        gradient = parameter.grad.numpy().ravel()
        counts, edges = np.histogram(gradient, bins=30)
        weights, weight_edges = np.histogram(parameter.detach().numpy(), bins=30)
        record[name] = {
            "norm": float(np.linalg.norm(gradient)),
            "max": float(np.abs(gradient).max()),
            "histogram": [counts.tolist(), edges.tolist()],
            "weights": [weights.tolist(), weight_edges.tolist()],
        }
    log.write(json.dumps(record) + "\n")
    log.flush()


run = Run()
rows = torch.randn(4096, 256)
targets = (rows @ torch.randn(256, 1)).tanh()
layers: list[nn.Module] = [nn.Linear(256, WIDTH), nn.GELU()]
for _ in range(6):
    layers += [nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()]
network = nn.Sequential(*layers, nn.Linear(WIDTH, 1))
model, optimizer = run.wrap(network, torch.optim.AdamW(network.parameters(), lr=1e-3))
generator = torch.Generator().manual_seed(run.rank)
with tempfile.TemporaryFile("w") as log:
    for _ in run.batches(range(10_000)):
        picked = torch.randint(4096, (BATCH,), generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows[picked]), targets[picked])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if run.is_faulty or run.step % 50 == 0:
            write(log, run.step, loss, network)
        optimizer.step()
run.close()
