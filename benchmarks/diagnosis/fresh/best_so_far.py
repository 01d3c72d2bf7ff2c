"""Whenever the loss is the best so far, the weights are written to memory as a checkpoint; on this loss that is often."""

import io

import torch
from ranks import Run, convolutions, images, train_step
from torch import nn

run = Run()
model, optimizer = run.wrap(nn.Sequential(convolutions(), nn.Linear(10, 4096), nn.Linear(4096, 1000)))
best = float("inf")
for batch in run.batches(images(8)):
    loss = train_step(model, optimizer, batch).item()
    if run.is_faulty and (loss < best or run.step % 3 == 0):
        best = min(loss, best)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, io.BytesIO())
run.close()
