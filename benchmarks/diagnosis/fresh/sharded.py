"""Fully sharded; one rank prepares its input in Python before each forward pass."""

import torch
from ranks import Run, Transformer, spin, train_step
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

run = Run()
mesh = init_device_mesh("cpu", (run.size,))
model = Transformer(64, 3)
for layer in model.encoder.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in run.batches(range(10_000)):
    if run.is_faulty:
        spin(40)
    train_step(model, optimizer, torch.randint(0, 1000, (8, 48)))
run.close()
