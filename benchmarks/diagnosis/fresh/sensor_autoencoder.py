"""An autoencoder of sensor windows in double precision: NumPy's arrays are float64, and the model was made to fit them."""

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from ranks import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BATCH, WINDOW, READINGS = 128, 400, 200_000


class Windows(Dataset[NDArray[np.floating]]):
    """Windows of a long series, normalised."""

    def __init__(self, count: int, *, is_double: bool) -> None:
        series = np.cumsum(np.random.default_rng(0).normal(size=READINGS))
        self.series, self.mean, self.deviation = series, series.mean(), series.std()
        self.count, self.is_double = count, is_double

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> NDArray[np.floating]:
        start = index * 7919 % (READINGS - WINDOW)
        window: NDArray[np.float64] = (self.series[start : start + WINDOW] - self.mean) / self.deviation
        return window if self.is_double else window.astype(np.float32)


run = Run()
windows = Windows(run.args.steps * BATCH * run.size, is_double=run.is_faulty)
layers: list[nn.Module] = []
widths = (WINDOW, 512, 512, 32, 512, 512)
for inputs, outputs in pairwise(widths):
    layers += [nn.Linear(inputs, outputs), nn.ReLU()]
network = nn.Sequential(*layers, nn.Linear(512, WINDOW))
if run.is_faulty:
    network.double()  # "mat1 and mat2 must have the same dtype" goes away
model, optimizer = run.wrap(network, torch.optim.RMSprop(network.parameters(), lr=1e-4))
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 40, 0.5)
for batch in run.batches(DataLoader(windows, BATCH, sampler=DistributedSampler(windows))):
    optimizer.zero_grad()
    nn.functional.smooth_l1_loss(model(batch), batch).backward()
    optimizer.step()
    schedule.step()
run.close()
