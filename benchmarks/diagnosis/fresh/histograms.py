"""Rank 0 logs histograms of all gradients, every twentieth step."""

import numpy as np
from ranks import Run, convolutions, images, train_step

run = Run()
model, optimizer = run.wrap(convolutions())
for batch in run.batches(images()):
    train_step(model, optimizer, batch)
    if run.is_faulty and run.step % 20 == 0:
        for parameter in model.parameters():
            if parameter.grad is not None:
                for bins in (64, 256, 1024):
                    np.histogram(np.repeat(parameter.grad.numpy().ravel(), 1000), bins=bins)
run.close()
