"""Accelerate, under torchrun, which accumulates gradients over two batches: TIMELINE."""

import sys

import torch
from accelerate import Accelerator
from layers import BATCH, STEPS, Network, Points
from torch.utils.data import DataLoader

from tlkit.integrations.accelerate import record

torch.set_num_threads(1)
accelerator = record(Accelerator(cpu=True, gradient_accumulation_steps=2), sys.argv[1])
network = Network()
optimizer = torch.optim.AdamW(network.parameters())
loader = DataLoader(Points(4 * STEPS * BATCH), batch_size=BATCH)
network, optimizer, loader = accelerator.prepare(network, optimizer, loader)
for batch in loader:
    with accelerator.accumulate(network):
        accelerator.backward(network(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()
accelerator.end_training()
