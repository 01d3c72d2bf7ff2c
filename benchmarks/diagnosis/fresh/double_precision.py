"""One rank normalises its images in double precision, with NumPy, where the others have them ready."""

import numpy as np
import torch
from ranks import Run, convolutions, images, train_step

run = Run()
model, optimizer = run.wrap(convolutions())
for batch in run.batches(images()):
    if run.is_faulty:
        values = np.repeat(batch.numpy().astype(np.float64), 12, axis=0)
        values = (values - values.mean((2, 3), keepdims=True)) / (values.std((2, 3), keepdims=True) + 1e-6)
        batch = torch.from_numpy(np.tanh(values)[:16]).float()  # noqa: PLW2901
    train_step(model, optimizer, batch)
run.close()
