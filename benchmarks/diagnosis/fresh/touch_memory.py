"""Each step makes a buffer of 60 MB, writes to it, and drops it."""

import torch
from ranks import Run, convolutions, images, train_step

run = Run()
model, optimizer = run.wrap(convolutions())
for batch in run.batches(images()):
    if run.is_faulty:
        buffer = torch.empty(15_000_000)
        buffer.fill_(1.0)
        batch = batch + 1e-9 * buffer[0]  # noqa: PLW2901
    train_step(model, optimizer, batch)
run.close()
