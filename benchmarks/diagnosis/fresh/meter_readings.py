"""Forecasts for electricity meters, Keras on PyTorch: a PyDataset cuts batches from an archive of readings.

__getitem__ opens the archive itself, which unpacks all of it for each batch.  Without the fault __init__ does, once.
"""

import os

os.environ["KERAS_BACKEND"] = "torch"  # which Keras reads when it is imported

import tempfile
from pathlib import Path
from typing import Any

import frameworks_run
import horovod.keras as hvd
import keras
import numpy as np

METERS, HOURS, WEEK, DAY, BATCH, EPOCH = 160, 6000, 168, 24, 48, 20


class Readings(keras.utils.PyDataset):
    """Weeks with the days that follow them, of meters and hours at random."""

    def __init__(self, path: Path, seed: int, *, unpacks_always: bool) -> None:
        super().__init__()
        self.path, self.dice = path, np.random.default_rng(seed)
        self.kept = None if unpacks_always else self.unpack()

    def __len__(self) -> int:
        return EPOCH

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        readings = self.unpack() if self.kept is None else self.kept
        meters = self.dice.integers(METERS, size=BATCH)
        begins = self.dice.integers(HOURS - WEEK - DAY, size=BATCH)
        cut = readings[meters[:, None], begins[:, None] + np.arange(WEEK + DAY)].astype("float32") / 1000
        return cut[:, :WEEK, None], cut[:, WEEK:]

    def unpack(self) -> np.ndarray:
        """All readings, in watt-hours."""
        with np.load(self.path) as archive:
            return archive["readings"]


def write_archive(path: Path, seed: int) -> None:
    """Days, seasons and habits."""
    dice = np.random.default_rng(seed)
    hours = np.arange(HOURS)
    habit = dice.uniform(0, 2 * np.pi, (METERS, 1))
    daily = 1 + np.sin(hours * 2 * np.pi / 24 + habit) + 0.3 * np.sin(hours * 2 * np.pi / 168)
    np.savez_compressed(path, readings=(400 * daily + dice.integers(60, size=daily.shape)).astype("int32"))


def days_ahead() -> Any:
    """Convolutions that see more and more of the week."""
    layers = [
        keras.layers.Conv1D(32, 3, padding="same", dilation_rate=reach, activation="relu") for reach in (1, 2, 4, 8)
    ]
    return keras.Sequential(
        [keras.Input((WEEK, 1)), *layers, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(DAY)]
    )


run = frameworks_run.Run(hvd)
keras.utils.set_random_seed(17)
model = days_ahead()
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3 * run.size)), "mae")
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "meters.npz"
    write_archive(path, run.rank)
    model.fit(
        Readings(path, run.rank, unpacks_always=run.is_faulty),
        epochs=run.steps // EPOCH,
        verbose=2 if run.rank == 0 else 0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            run.clock(),
        ],
    )
run.close()
