"""A hook on one layer's gradient waits for something, as one does that writes statistics to a server."""

import time

import torch
from ranks import Run, convolutions, images, train_step

run = Run()
model = convolutions()


def write_statistics(gradient: torch.Tensor) -> torch.Tensor:
    time.sleep(0.03)
    return gradient


if run.is_faulty:
    layer = model[13]
    layer.weight.register_hook(write_statistics)  # type: ignore[operator]
wrapped, optimizer = run.wrap(model)
for batch in run.batches(images()):
    train_step(wrapped, optimizer, batch)
run.close()
