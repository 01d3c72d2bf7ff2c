"""How far each rank is from a typical one: the median of the others."""

from typing import Final

import numpy as np

#: Among so many ranks one more or less does not move the median.
FEW_RANKS: Final = 32


def away_from_typical(values: np.ndarray) -> np.ndarray:
    """Each rank's value less the median of the other ranks'; of many ranks less the median of all.

    Args:
        values: float[rank, ...].

    >>> away_from_typical(np.array([[1.0], [5.0]])).tolist()
    [[-4.0], [4.0]]
    """
    values = values.astype(float)
    count = len(values)
    if count < 2:  # noqa: PLR2004  nobody to compare with
        return np.zeros_like(values)
    if count > FEW_RANKS:
        away: np.ndarray = values - np.median(values, axis=0, keepdims=True)
        return away
    others = [np.median(np.delete(values, row, axis=0), axis=0) for row in range(count)]
    less: np.ndarray = values - np.stack(others)
    return less
