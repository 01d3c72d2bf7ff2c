"""A hook on one layer's gradient computes: a singular value decomposition each time, which nobody needs each step."""

import torch
from ranks import Run, convolutions, images, train_step

run = Run()
model = convolutions()


def condition(gradient: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        torch.linalg.svd(gradient.reshape(16, -1).repeat(8, 1))
    return gradient


if run.is_faulty:
    model[13].weight.register_hook(condition)  # type: ignore[operator]
wrapped, optimizer = run.wrap(model)
for batch in run.batches(images()):
    train_step(wrapped, optimizer, batch)
run.close()
