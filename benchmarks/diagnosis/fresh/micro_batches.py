"""Gradients are accumulated over four micro-batches, and reduced after each of them."""

import contextlib

from ranks import Run, images
from torch import nn

run = Run()
layers: list[nn.Module] = [nn.Flatten()]
for width in (3072, 512, 512, 512):
    layers += [nn.Linear(width, 512), nn.ReLU()]
model, optimizer = run.wrap(nn.Sequential(*layers, nn.Linear(512, 10)))
for batch in run.batches(images(64)):
    optimizer.zero_grad()
    parts = batch.chunk(4)
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        with contextlib.nullcontext() if run.is_faulty or is_last else model.no_sync():  # type: ignore[operator]
            (model(part).square().mean() / len(parts)).backward()
    optimizer.step()
run.close()
