"""Prices from the titles of offers, Keras on PyTorch: a PyDataset with three threads hashes the n-grams of each title, in Python.

The threads have one interpreter lock with each other and with the training.  Without the fault titles are hashed once, before it.
"""

import os

os.environ["KERAS_BACKEND"] = "torch"  # which Keras reads when it is imported

import zlib
from typing import Any

import frameworks_run
import horovod.keras as hvd
import keras
import numpy as np

BUCKETS, GRAMS, BATCH, EPOCH, OFFERS = 8192, 48, 128, 30, 3000
BRANDS = ["nordlicht", "acme", "kestrel", "umbra", "solway", "harrow", "tarn"]
THINGS = ["kettle", "toaster", "lamp", "drill", "mixer", "radio", "heater", "fan", "jigsaw", "sander"]


def write_titles(seed: int) -> tuple[list[str], np.ndarray]:
    """What sellers write, and logarithms of prices."""
    dice = np.random.default_rng(seed)
    titles, prices = [], []
    for _ in range(OFFERS):
        brand, thing, size = dice.integers(len(BRANDS)), dice.integers(len(THINGS)), dice.integers(1, 40)
        words = [BRANDS[brand], THINGS[thing], f"{size * 50}W", f"model-{dice.integers(10**6)}", "NEW", "free shipping"]
        also = [THINGS[number] for number in dice.integers(len(THINGS), size=8)]
        titles.append(" ".join([*words, "not for:", *also]))
        prices.append(np.log(10 + 5 * brand + 3 * thing + size))
    return titles, np.array(prices, "float32")


def hash_title(title: str) -> np.ndarray:
    """Buckets of its n-grams."""
    text = f"<{title.lower()}>"
    counts: dict[int, int] = {}
    for length in range(2, 7):
        for begin in range(len(text) - length + 1):
            bucket = zlib.crc32(text[begin : begin + length].encode()) % (BUCKETS - 1) + 1
            counts[bucket] = counts.get(bucket, 0) + 1
    common = sorted(counts, key=lambda bucket: (-counts[bucket], bucket))[:GRAMS]
    return np.array(common + [0] * (GRAMS - len(common)), "int32")


class Offers(keras.utils.PyDataset):
    """Batches of titles as buckets."""

    def __init__(self, seed: int, *, hashes_always: bool, **settings: Any) -> None:
        super().__init__(**settings)
        self.titles, self.prices = write_titles(seed)
        self.dice = np.random.default_rng(seed)
        self.hashed = None if hashes_always else np.stack([hash_title(title) for title in self.titles])

    def __len__(self) -> int:
        return EPOCH

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = np.random.default_rng(index).permutation(OFFERS)[:BATCH]
        if self.hashed is None:
            return np.stack([hash_title(self.titles[number]) for number in chosen]), self.prices[chosen]
        return self.hashed[chosen], self.prices[chosen]


run = frameworks_run.Run(hvd)
keras.utils.set_random_seed(23)
model = keras.Sequential(
    [
        keras.Input((GRAMS,), dtype="int32"),
        keras.layers.Embedding(BUCKETS, 24),
        keras.layers.Conv1D(40, 1, activation="relu"),
        keras.layers.Conv1D(40, 1, activation="relu"),
        keras.layers.GlobalMaxPooling1D(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(1),
    ]
)
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(2e-3)), "mse")
model.fit(
    Offers(run.rank, hashes_always=run.is_faulty, workers=3, max_queue_size=8),
    epochs=run.steps // EPOCH,
    verbose=2 if run.rank == 0 else 0,
    callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), run.clock()],
)
run.close()
