"""What all ranks spend alike on a part of the steps, and no rank alone."""

from typing import Final

import numpy as np

#: What a rank has in more of the steps than this is usual.  Ranks that are slow in turn are slow in half of them at most.
USUAL_RATIO: Final = 0.6


def common_to_all(part_ns: np.ndarray) -> np.ndarray:
    """How much of a part all ranks have: float[rank, step].

    It is what the rank with the least has in each step.  Where ranks share cores, who has the least changes from step to step
    though all do the same: what every rank has in most of its steps is common, too.

    Args:
        part_ns: what each rank spends on the part, int or float[rank, step].
    """
    if not part_ns.size:
        return part_ns.astype(float)
    usual_ns = np.quantile(part_ns, 1 - USUAL_RATIO, axis=1).min()
    common: np.ndarray = np.minimum(part_ns, np.maximum(part_ns.min(axis=0), usual_ns)).astype(float)
    return common
