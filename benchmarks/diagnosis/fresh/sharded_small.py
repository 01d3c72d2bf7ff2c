"""Fully sharded down to each of many small layers, instead of by block."""

import torch
from ranks import Run, images, train_step
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

run = Run()
mesh = init_device_mesh("cpu", (run.size,))
model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 128), *(nn.Linear(128, 128) for _ in range(24)))
if run.is_faulty:
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for batch in run.batches(images(64)):
    train_step(model, optimizer, batch)
run.close()
