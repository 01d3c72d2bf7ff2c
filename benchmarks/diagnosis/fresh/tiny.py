"""A tiny model, in which nothing is wrong: steps of few milliseconds, most of them communication."""

from ranks import Run, images, train_step
from torch import nn

run = Run()
model, optimizer = run.wrap(nn.Sequential(nn.Flatten(), nn.Linear(3072, 32), nn.ReLU(), nn.Linear(32, 10)))
for batch in run.batches(images(8)):
    train_step(model, optimizer, batch)
run.close()
