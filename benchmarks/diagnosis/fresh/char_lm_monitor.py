"""A language model of characters: a thread on rank 0 smooths and formats the whole history hundreds of times in a second.

It keeps a status page up to date, and takes the interpreter from the training.  Without the fault it does so every 3 s.
"""

import json
import threading
import time

import torch
from ranks import Run
from torch import nn


class Monitor(threading.Thread):
    """Keeps the document of the group's status page."""

    def __init__(self, pause_s: float) -> None:
        super().__init__(daemon=True)
        self.pause_s = pause_s
        self.history: list[dict[str, float]] = []
        self.is_over = threading.Event()
        self.document = ""

    def report(self, **values: float) -> None:
        self.history.append(values)

    def run(self) -> None:
        while not self.is_over.wait(self.pause_s):
            smooth = []
            for width in (10, 25, 50, 100):
                for end in range(1, len(self.history) + 1):
                    window = self.history[max(0, end - width) : end]
                    smooth.append(sum(values["loss"] for values in window) / len(window))
            self.document = json.dumps({"history": self.history, "smooth": smooth})


run = Run()
blocks = [nn.TransformerEncoderLayer(128, 4, 256, 0.0, batch_first=True) for _ in range(4)]
network = nn.Sequential(nn.Embedding(128, 128), *blocks, nn.Linear(128, 128))
model, optimizer = run.wrap(network, torch.optim.AdamW(network.parameters(), lr=3e-4))
monitor = Monitor(0.002 if run.is_faulty else 3.0)
if run.rank == 0:
    monitor.start()
generator = torch.Generator().manual_seed(run.rank)
for _ in run.batches(range(10_000)):
    text = torch.randint(128, (8, 33), generator=generator)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    if run.rank == 0:
        monitor.report(step=run.step, loss=loss.item(), time=time.time())
monitor.is_over.set()
run.close()
