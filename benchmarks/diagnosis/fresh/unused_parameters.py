"""DistributedDataParallel looks for unused parameters in each step of a model of many parameters, all of which are used."""

from ranks import Run, images, train_step
from torch import nn

run = Run()
layers: list[nn.Module] = [nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 32)]
for _ in range(150):
    layers += [nn.Linear(32, 32), nn.LayerNorm(32), nn.Tanh()]
model, optimizer = run.wrap(nn.Sequential(*layers), find_unused_parameters=run.is_faulty)
for batch in run.batches(images()):
    train_step(model, optimizer, batch)
run.close()
