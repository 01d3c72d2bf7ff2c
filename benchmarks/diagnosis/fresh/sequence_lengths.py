"""Sequences of any length, in batches as they come: in each step another rank has the longest."""

import torch
from ranks import Run, Transformer, train_step

run = Run()
model, optimizer = run.wrap(Transformer(64, 2))
chance = torch.Generator().manual_seed(run.rank)
for _ in run.batches(range(10_000)):
    length = int(torch.randint(16, 385, (1,), generator=chance)) if run.args.faulty else 200
    train_step(model, optimizer, torch.randint(0, 1000, (4, length)))
run.close()
