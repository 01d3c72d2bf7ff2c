"""A hook keeps the largest hundredth of each gradient and drops the rest, before anything is sent."""

import torch
from ranks import Run, images, train_step
from torch import nn

run = Run()
layers: list[nn.Module] = [nn.Flatten()]
for width in (3072, 512, 512, 512):
    layers += [nn.Linear(width, 512), nn.ReLU()]
model, optimizer = run.wrap(nn.Sequential(*layers, nn.Linear(512, 10)))


def keep_largest(gradient: torch.Tensor) -> torch.Tensor:
    count = max(gradient.numel() // 100, 1)
    least = gradient.abs().flatten().topk(count).values[-1]
    return torch.where(gradient.abs() >= least, gradient, torch.zeros(()))


if run.is_faulty:
    for parameter in model.parameters():
        parameter.register_hook(keep_largest)
for batch in run.batches(images(32)):
    train_step(model, optimizer, batch)
run.close()
