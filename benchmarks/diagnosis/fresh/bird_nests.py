"""Whose nest is on a photo: a CNN that learns from photos in a zip archive.

An open archive cannot be sent to loader workers, so the dataset opens it for each photo, which reads the directory of all
photos each time. Without the fault it opens the archive at the first photo and keeps it.
"""

import functools
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from ranks import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, BIRDS, PHOTOS, BATCH, WIDTH = 40, 15, 320, 8, 20

Item = tuple[torch.Tensor, int]


def make_archive(path: Path, seed: int) -> None:
    """Photos of nests, in folders by bird."""
    dice = np.random.default_rng(seed)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for number in range(PHOTOS):
            bird = number % BIRDS
            photo = dice.integers(0, 12, (3, SIDE, SIDE)) * 8 + 8 * bird
            archive.writestr(f"photos/{bird:02}/{number:06}.raw", photo.astype(np.uint8).tobytes())


class Nests(Dataset[Item]):
    """Photos in an archive, each with its bird."""

    def __init__(self, path: Path, *, keeps_open: bool) -> None:
        self.path, self.keeps_open = path, keeps_open
        with zipfile.ZipFile(path) as archive:
            self.names = archive.namelist()

    @functools.cached_property
    def archive(self) -> zipfile.ZipFile:
        """Opened in the process that reads."""
        return zipfile.ZipFile(self.path)

    def read(self, name: str) -> bytes:
        """The bytes of a photo."""
        if self.keeps_open:
            return self.archive.read(name)
        with zipfile.ZipFile(self.path) as archive:
            return archive.read(name)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Item:
        name = self.names[index]
        pixels = np.frombuffer(bytearray(self.read(name)), np.uint8).reshape(3, SIDE, SIDE)
        return torch.from_numpy(pixels).float() / 255, int(name.split("/")[1])


def network_of(width: int) -> nn.Sequential:
    """Photos in, scores of birds out."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU(inplace=True)]
    for _ in range(3):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(inplace=True)]
    layers += [nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, BIRDS))


def main() -> None:
    """Train."""
    run = Run()
    network = network_of(WIDTH)
    model, optimizer = run.wrap(network, torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, nesterov=True))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"nests{run.rank}.zip"
        make_archive(path, run.rank)
        loader = DataLoader(Nests(path, keeps_open=not run.is_faulty), BATCH, shuffle=True, drop_last=True)
        for photos, birds in run.batches(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(photos), birds)
            loss.backward()
            optimizer.step()
    run.close()


main()
