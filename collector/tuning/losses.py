"""Whether a setting changes what the training computes, from the losses of steps with and without it.

Settings that only reorder sums (another transport, more threads, a fused update) change the last digits, and training carries
them on and enlarges them; other data, or the same in another order, changes the loss at once.  So the first steps are compared
closely, later ones loosely, and never more closely than runs without any change agree among themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

#: Relative difference of a loss in the first steps: rounding of float32 in a forward pass is 1e-7 to 1e-5.
FIRST_TOLERANCE: Final = 1e-4
FIRST_STEPS: Final = 5
#: And later, when the differences of the first steps have passed through the weights.
LATER_TOLERANCE: Final = 1e-2
#: Times the difference between runs that should be alike.
OF_SPREAD: Final = 2.0

Losses = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Losses with a setting beside those without."""

    verdict: str
    """`same` to the last digit, `rounding`, `changed`, or `unknown` where there are no losses."""
    difference: float
    """The largest relative one of the steps that both have."""
    step: int
    """Where it is."""
    repeats: bool
    """Whether runs without a change agree with each other within the tolerance: False for random numbers without a seed."""


def mean_losses(ranks: Sequence[Losses]) -> list[float | None]:
    """Losses by step: the mean over ranks, None where one has none."""
    length = min((len(losses) for losses in ranks), default=0)
    steps = zip(*(losses[:length] for losses in ranks), strict=True)
    return [None if None in values else float(np.mean([v for v in values if v is not None])) for values in steps]


def compare(baselines: Sequence[Losses], changed: Losses) -> Comparison:
    """Compare the losses of a run with those of runs without its setting.

    Args:
        baselines: of one run or more.
        changed: of the run with the setting.
    """
    length = min((len(losses) for losses in (*baselines, changed)), default=0)
    known = [step for step in range(length) if all(losses[step] is not None for losses in baselines)]
    if not known or not baselines:
        return Comparison("unknown", 0.0, 0, repeats=True)
    if any(changed[step] is None for step in known):
        return Comparison("changed", float("inf"), next(s for s in known if changed[s] is None), repeats=True)
    before = np.array([[losses[step] for step in known] for losses in baselines], dtype=float)
    after = np.array([changed[step] for step in known], dtype=float)
    centre = before.mean(axis=0)
    # A loss near 0 is compared with what losses usually are here.
    scale = np.maximum(np.abs(centre), 0.01 * float(np.abs(centre).max()) + 1e-12)
    tolerance = np.where(np.array(known) < FIRST_STEPS, FIRST_TOLERANCE, LATER_TOLERANCE)
    spread = np.maximum.accumulate((before.max(axis=0) - before.min(axis=0)) / scale)
    difference = np.abs(after - centre) / scale
    largest = int(difference.argmax())
    repeats = bool((spread <= tolerance).all())
    if not difference.any():
        verdict = "same"
    else:
        verdict = "rounding" if bool((difference <= np.maximum(tolerance, OF_SPREAD * spread)).all()) else "changed"
    return Comparison(verdict, float(difference[largest]), known[largest], repeats=repeats)
