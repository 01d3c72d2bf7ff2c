"""Prices of stamps from their auctions, kept in SQLite; each rank has the catalogue of a country, under DistributedDataParallel.

The dataset asks for the auctions of a stamp, and nobody made an index, so the whole table is read for every sample.  Without the
fault there is one.
"""

import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import torch
from ranks import Run
from torch import nn
from torch.utils.data import DataLoader, Dataset

STAMPS, AUCTIONS, BATCH, WIDTH = 1200, 10, 40, 160


class Catalogue(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The auctions of a stamp, and what it brought in the last of them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return STAMPS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with sqlite3.connect(self.path) as connection:
            rows = connection.execute(
                "SELECT year, condition, bidders, price FROM auctions WHERE stamp = ? ORDER BY year", (index,)
            ).fetchall()
        table = torch.tensor(rows)
        return table[:-1], table[-1, 3]


def write(path: Path, seed: int, *, is_indexed: bool) -> None:
    """All auctions, by date, so those of a stamp are far apart."""
    dice = np.random.default_rng(seed)
    stamps = dice.permutation(np.repeat(np.arange(STAMPS), AUCTIONS)).tolist()
    values = dice.normal(size=(len(stamps), 4)).round(4).tolist()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE auctions (stamp INTEGER, year REAL, condition REAL, bidders REAL, price REAL)")
        connection.executemany(
            "INSERT INTO auctions VALUES (?, ?, ?, ?, ?)",
            [(stamp, *row) for stamp, row in zip(stamps, values, strict=True)],
        )
        if is_indexed:
            connection.execute("CREATE INDEX by_stamp ON auctions (stamp)")


class Appraiser(nn.Module):
    """Auctions in, a price out."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.GRU(4, WIDTH, num_layers=2, batch_first=True)
        self.price = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def forward(self, auctions: torch.Tensor) -> torch.Tensor:
        _, last = self.read(auctions)
        price: torch.Tensor = self.price(last[-1]).squeeze(1)
        return price


run = Run()
appraiser = Appraiser()
model, optimizer = run.wrap(appraiser, torch.optim.Adam(appraiser.parameters(), lr=1e-3))
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "auctions.db"
    write(path, run.rank, is_indexed=not run.is_faulty)
    for auctions, prices in run.batches(DataLoader(Catalogue(path), BATCH, shuffle=True, drop_last=True)):
        optimizer.zero_grad()
        nn.functional.smooth_l1_loss(model(auctions), prices).backward()
        optimizer.step()
run.close()
