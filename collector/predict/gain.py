"""How sure one can be of a gain."""

import math
from typing import Final

import numpy as np

from ..model.arrays import Floats

RESAMPLES: Final = 400
#: Up to this error of the model (Replay.error_ratio) gains stand as they are.
SURE_RATIO: Final = 0.05
#: Above this error nothing is promised.
MAX_PROMISED_RATIO: Final = 0.2
#: How far replays are off the truth that has nothing to do with chance, as a share of the step and of the gain: of 300 simulated
#: jobs 92 % lie within this and the bootstrap together (docs/diagnosis.md).
LEFT_OUT_RATIO: Final = 0.015
LEFT_OUT_OF_GAIN: Final = 0.1
#: Fewer steps than this tell nothing of how they vary.
MIN_STEPS: Final = 4


def gain_of(saved_ns: Floats, step_ns: Floats) -> tuple[float, tuple[float, float]]:
    """Mean gain and its 95 % interval, from the time saved in each step and the steps' durations.

    The interval is a bootstrap over blocks of consecutive steps (their length is the square root of the number of steps, so
    that what comes in waves stays together): it says how sure the mean is, not how steps vary.  With few steps it is as wide
    as can be.

    Args:
        saved_ns: float[step], may be negative.
        step_ns: float[step].
    """
    count = len(saved_ns)
    total = float(np.sum(step_ns))
    if not count or total <= 0:
        return 0.0, (0.0, 0.0)
    gain = float(np.clip(saved_ns.sum() / total, 0.0, 1.0))
    if count < MIN_STEPS:
        return gain, (0.0, 1.0 if gain else 0.0)
    length = max(1, int(count**0.5))
    draws = np.random.default_rng(0)  # the same report each time
    first = draws.integers(0, count, size=(RESAMPLES, -(-count // length)))
    chosen = ((first[:, :, None] + np.arange(length)) % count).reshape(RESAMPLES, -1)[:, :count]
    ratios = saved_ns[chosen].sum(axis=1) / np.maximum(step_ns[chosen].sum(axis=1), 1.0)
    low, high = np.quantile(np.clip(ratios, 0.0, 1.0), [0.025, 0.975])
    return gain, (float(min(low, gain)), float(max(high, gain)))


def widened(gain: float, interval: tuple[float, float], error_ratio: float) -> tuple[float, float]:
    """The interval of a gain with what the model leaves out, and its error in this run where that is worth a doubt.

    The bootstrap says how sure the mean over the steps is, and the two errors have nothing to do with each other: their squares
    add up.  A change that gains nothing is left alone.
    """
    if not gain:
        return interval
    left_out = LEFT_OUT_RATIO + LEFT_OUT_OF_GAIN * gain
    low = gain - math.hypot(gain - interval[0], left_out)
    high = gain + math.hypot(interval[1] - gain, left_out)
    doubt = error_ratio if error_ratio > SURE_RATIO else 0.0
    return max(low - doubt, 0.0), min(high + doubt, 1.0)
