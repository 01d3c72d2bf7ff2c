"""Ranks of one host whose cores are slower for a while: everything they compute takes longer by about the same share.

Two hardware threads share a core, and neighbours on the same processor its clock and its caches: one rank then computes the same
with more processor time, forward and backward alike, and the operating system sees nobody else.  What a rank does besides makes
one part longer.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...timeline.vocabulary import Category
from ..facts import Facts
from ..model.peers import Excess
from .transport import is_one_host

COMPUTED: Final = tuple(map(str, (Category.FORWARD, Category.BACKWARD, Category.OPTIMIZER)))
#: Parts with less of a step are too short to be compared.
MIN_COMPUTED: Final = 0.1
MIN_COMPUTED_PARTS: Final = 2
#: The part that takes longer by the smallest share has at least so much of the largest share.
ALIKE: Final = 0.4
#: A core that shares its units with another hardware thread, or is hot, is half as fast at worst.
MOST_SLOWER: Final = 1.0


def is_on_slower_cores(facts: Facts, excess: Excess) -> bool:
    """Whether ranks compute the same more slowly in the steps in which they are slow, in all parts alike.

    Compared with the ranks that are not slow in the same step.
    """
    if facts.breakdown.on_device or not is_one_host(facts):
        return False
    ratios = []
    for part in COMPUTED:
        took, usual = _beside_peers(facts.worked(part).astype(float), excess.slow)
        if usual >= MIN_COMPUTED * facts.mean_step_ns:
            ratios.append(took / usual - 1)
    return len(ratios) >= MIN_COMPUTED_PARTS and are_alike(ratios)


def are_alike(ratios: Sequence[float], most: float = MOST_SLOWER) -> bool:
    """Whether parts take longer by about the same share, and by no more than `most`.

    >>> are_alike([0.2, 0.3]), are_alike([0.05, 0.3]), are_alike([2.0, 2.0])
    (True, False, False)
    """
    return 0 < max(ratios) <= most and min(ratios) >= ALIKE * max(ratios)


def _beside_peers(work: np.ndarray, slow: np.ndarray) -> tuple[float, float]:
    """What slow ranks work in the steps in which they are slow, and what the others work in the same steps: means, ns.

    Args:
        work: float[rank, step].
        slow: bool[rank, step].
    """
    quick = ~slow
    beside = quick.any(axis=0) & slow.any(axis=0)
    if not beside.any():
        return 0.0, 0.0
    peers = np.where(quick, work, 0.0).sum(axis=0) / np.maximum(quick.sum(axis=0), 1)
    steps = np.nonzero(slow & beside)
    return float(work[steps].mean()), float(peers[steps[1]].mean())
