"""A moving average of the weights is kept by copying the whole state dictionary in each step."""

import copy

from ranks import Run, convolutions, images, train_step
from torch import nn

run = Run()
model, optimizer = run.wrap(nn.Sequential(convolutions(), nn.Linear(10, 4096), nn.Linear(4096, 1000)))
average = copy.deepcopy(model.state_dict())
for batch in run.batches(images(8)):
    train_step(model, optimizer, batch)
    if run.is_faulty:
        now = copy.deepcopy(model.state_dict())
        for name, value in now.items():
            if value.is_floating_point():
                average[name] = 0.999 * average[name] + 0.001 * value
run.close()
