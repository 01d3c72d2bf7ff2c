"""Random draws that stay the same when a fault is taken away.

Every draw belongs to an item ("forward", "collective", …) and a place (rank, step): a run with the fault and one without
see the same luck, so that their difference is the fault.
"""

from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: How far clocks of computers run apart at most: 30 microseconds a second.
_MAX_DRIFT = 30e-6


class Noise:
    """Draws by item, from a counter-based generator."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def generator(self, item: str) -> np.random.Generator:
        """The generator of one item; the same every time."""
        return np.random.Generator(np.random.Philox(key=[self._seed % 2**64, crc32(item.encode())]))

    def factors(self, item: str, shape: tuple[int, ...], sigma: float) -> Floats:
        """Lognormal factors with mean 1: `sigma` 0.05 means that they vary by 5 %."""
        return np.exp(sigma * self.generator(item).standard_normal(shape) - sigma * sigma / 2)


def drifts(noise: Noise, count: int) -> list[float]:
    """How much faster than the first host's the clocks of the other hosts run."""
    drawn: list[float] = noise.generator("drift").uniform(-_MAX_DRIFT, _MAX_DRIFT, count).tolist()
    return drawn
