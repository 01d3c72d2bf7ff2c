"""Bird songs to species: a thread of our own fills a buffer with mel spectrograms, but there is one buffer only.

So it begins when the training has finished with the batch before, and both look every 10 ms whether it is their turn.  Without
the fault they meet in a queue.Queue, for which the thread works ahead.
"""

import queue
import threading
import time
from collections.abc import Iterator

import torch
from ranks import Run
from torch import nn

SPECIES, SAMPLES, BATCH, MELS = 20, 8192, 8, 48
AHEAD, NAP_S = 2, 0.01

Batch = tuple[torch.Tensor, torch.Tensor]


class Songs:
    """Batches of spectrograms."""

    def __init__(self, seed: int) -> None:
        self.dice = torch.Generator().manual_seed(seed)
        self.window = torch.hann_window(512)
        self.mels = torch.rand(MELS, 257, generator=self.dice).softmax(1)

    def make(self) -> Batch:
        songs = torch.randn(BATCH, SAMPLES, generator=self.dice)
        power = torch.stft(songs, 512, 128, window=self.window, return_complex=True).abs().square()
        return (self.mels @ power).log1p().unsqueeze(1), torch.randint(SPECIES, (BATCH,), generator=self.dice)


def taking_turns(songs: Songs) -> Iterator[Batch]:
    """One buffer, which belongs to the thread while it is empty, and to the training else."""
    buffer: list[Batch] = []

    def work() -> None:
        while True:
            if not buffer:
                buffer.append(songs.make())
            time.sleep(NAP_S)

    threading.Thread(target=work, daemon=True).start()
    while True:
        while not buffer:
            time.sleep(NAP_S)
        yield buffer[0]
        buffer.clear()


def queued(songs: Songs) -> Iterator[Batch]:
    """The thread works ahead, and both sides are woken when it is their turn."""
    ready: queue.Queue[Batch] = queue.Queue(AHEAD)

    def work() -> None:
        while True:
            ready.put(songs.make())

    threading.Thread(target=work, daemon=True).start()
    while True:
        yield ready.get()


run = Run()
layers: list[nn.Module] = []
for before, after in ((1, 16), (16, 24), (24, 32)):
    layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, SPECIES))
model, optimizer = run.wrap(network, torch.optim.Adam(network.parameters(), lr=1e-3))
songs = Songs(70 + run.rank)
for spectrograms, species in run.batches(taking_turns(songs) if run.is_faulty else queued(songs)):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(spectrograms), species).backward()
    optimizer.step()
run.close()
