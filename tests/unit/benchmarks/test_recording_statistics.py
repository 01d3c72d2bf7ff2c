"""What `benchmarks/recording.py` makes of its pairs: figures whose intervals hold what was added, on a noisy machine, too."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import recording


def noisy_pairs(added_ratio: float, seed: int) -> list[tuple[float, float]]:
    """Blocks of 20 ms a step that others make longer, half of them by up to a third."""
    dice = np.random.default_rng(seed)
    slower = 1 + dice.uniform(0, 0.3, (200, 2)) * (dice.random((200, 2)) < 0.5)
    off, on = (0.02 * slower * (1 + dice.normal(0, 0.002, (200, 2)))).T
    return [(float(a), float(b * (1 + added_ratio))) for a, b in zip(off, on, strict=True)]


@pytest.mark.parametrize("added_ratio", [0.0, 0.01, 0.05])
def test_intervals_hold_what_was_added(added_ratio: float) -> None:
    """At least nine times of ten; the floor says it within one per cent where half of the blocks were disturbed."""
    held = dict.fromkeys(("ratio", "floor", "added"), 0)
    for seed in range(20):
        pairs = noisy_pairs(added_ratio, seed)
        for name, figure, true in (
            ("ratio", recording.median_ratio, 1 + added_ratio),
            ("floor", recording.floor_ratio, 1 + added_ratio),
            ("added", recording.floor_added_us, 0.02e6 * added_ratio),
        ):
            low, high = recording.interval(pairs, figure, resamples=200)
            held[name] += low <= true <= high
        low, high = recording.interval(pairs, recording.floor_ratio, resamples=200)

        assert high - low < 0.01

    assert min(held.values()) >= 16, held
