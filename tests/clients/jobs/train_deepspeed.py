"""DeepSpeed with ZeRO, under torchrun: STAGE TIMELINE.  Two groups of parameters, as with weight decay for some of them."""

import sys

import deepspeed
import torch
from layers import BATCH, STEPS, Network, Points
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from tlkit.integrations.deepspeed import initialize

stage, timeline = sys.argv[1:]
torch.set_num_threads(1)
# Its collectives in shared memory are compiled for minutes when they are first used; Gloo moves the bytes as well.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed("gloo")
network = Network()
decayed = [each for each in network.parameters() if each.dim() > 1]
others = [each for each in network.parameters() if each.dim() == 1]
optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}])
engine, *_ = initialize(
    timeline=timeline,
    model=network,
    optimizer=optimizer,
    config={
        "train_micro_batch_size_per_gpu": BATCH,
        "zero_optimization": {"stage": int(stage)},
        "zero_allow_untested_optimizer": True,
    },
)
dataset = Points(2 * STEPS * BATCH)
for batch in DataLoader(dataset, batch_size=BATCH, sampler=DistributedSampler(dataset, shuffle=False)):
    engine.backward(engine(**batch)["loss"])
    engine.step()
