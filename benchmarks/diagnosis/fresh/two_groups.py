"""Two by two ranks: pairs share activations, and the two pairs share gradients; one rank is late with its part."""

import time

import torch
from ranks import Run, Transformer
from torch import distributed, nn

run = Run()
pairs = [distributed.new_group([0, 1]), distributed.new_group([2, 3])]
others = [distributed.new_group([0, 2]), distributed.new_group([1, 3])]
pair, other = pairs[run.rank // 2], others[run.rank % 2]
model = nn.parallel.DistributedDataParallel(Transformer(48, 2), process_group=other)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
tokens = torch.randint(0, 1000, (4, 32))
for _ in run.batches(range(10_000)):
    optimizer.zero_grad()
    scores = model(tokens)
    if run.is_faulty:
        time.sleep(0.04)
    shared = scores.detach().clone()
    distributed.all_reduce(shared, group=pair)
    (scores * shared).mean().backward()
    optimizer.step()
run.close()
