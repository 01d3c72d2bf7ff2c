"""The gradient of a large embedding is dense, though each step touches a few of its rows."""

import torch
from ranks import Run, Transformer, train_step

run = Run()
model, optimizer = run.wrap(Transformer(64, 2, 100_000 if run.is_faulty else 1000))
for _ in run.batches(range(10_000)):
    train_step(model, optimizer, torch.randint(0, 1000, (8, 48)))
run.close()
