"""Autograd's anomaly detection was left on, with its check of every gradient."""

import torch
from ranks import Run, Transformer, train_step

run = Run()
model, optimizer = run.wrap(Transformer(64, 4))
torch.autograd.set_detect_anomaly(run.is_faulty)
for _ in run.batches(range(10_000)):
    train_step(model, optimizer, torch.randint(0, 1000, (4, 64)))
run.close()
