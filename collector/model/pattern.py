"""In which steps something happens, in words: always, every tenth, in a stretch, more and more, now and then."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

#: In so many of the steps is always.
ALWAYS_RATIO: Final = 0.8
#: Distances that vary by less than this share are a rhythm.
REGULAR: Final = 0.25
MIN_TIMES: Final = 3
#: Amounts below this share of the usual one do not count.
SMALL_RATIO: Final = 0.3
#: One stretch that holds this share of all.
ONE_STRETCH: Final = 0.9
MIN_STRETCH: Final = 4
#: How closely growth has to follow the steps' numbers.
GROWS: Final = 0.8
GROWING_WORDS: Final = "more and more from step to step"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """`always`, `growing`, `periodic`, `window` or `sometimes`, and how that is said."""

    kind: str
    words: str
    """`in every step`, `in every 10th step`, `in steps 20 to 39`, `in 7 of 60 steps`."""
    evidence: dict[str, Any]


def find_pattern(amounts: np.ndarray, numbers: np.ndarray) -> Pattern:
    """How the steps with an amount above 0 lie.

    Args:
        amounts: float[step].
        numbers: the steps' numbers.
    """
    hit = stands_out(amounts)
    count, total = int(hit.sum()), len(hit)
    evidence: dict[str, Any] = {"steps_ratio": round(count / max(total, 1), 3), "steps": numbers[hit][:20].tolist()}
    if count >= MIN_STRETCH and _grows(amounts):
        return Pattern(kind="growing", words=GROWING_WORDS, evidence=evidence)
    if count >= ALWAYS_RATIO * total:
        return Pattern(kind="always", words="in every step", evidence=evidence)
    distances = np.diff(numbers[hit])
    if count >= MIN_TIMES and distances.min() > 1 and distances.std() <= REGULAR * distances.mean():
        period = round(float(np.median(distances)))
        words = "in every second step" if period == 2 else f"in every {_ordinal(period)} step"  # noqa: PLR2004
        return Pattern(kind="periodic", words=words, evidence={**evidence, "period": period})
    first, last = np.flatnonzero(hit)[[0, -1]] if count else (0, 0)
    if count >= MIN_STRETCH and count >= ONE_STRETCH * (last - first + 1):
        words = f"in steps {numbers[first]} to {numbers[last]}"
        return Pattern(kind="window", words=words, evidence=evidence)
    return Pattern(kind="sometimes", words=f"in {count} of {total} steps", evidence=evidence)


def stands_out(amounts: np.ndarray) -> np.ndarray:
    """The steps that a pattern is made of: what is small beside the usual amount is chance; bool[step]."""
    usual = float(np.median(amounts[amounts > 0])) if (amounts > 0).any() else 0.0
    hit: np.ndarray = amounts > SMALL_RATIO * max(usual, float(amounts.max(initial=0.0)) / 2)
    return hit


def _grows(amounts: np.ndarray) -> bool:
    """Whether the amounts follow the steps' order, from little to much."""
    if amounts.std() == 0 or len(amounts) < 3 * MIN_STRETCH:
        return False
    third = len(amounts) // 3
    first, last = float(amounts[:third].mean()), float(amounts[-third:].mean())
    return bool(np.corrcoef(np.arange(len(amounts)), amounts)[0, 1] > GROWS and last > 2 * max(first, 1.0))


def _ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th.

    >>> [_ordinal(number) for number in (1, 2, 3, 10, 11, 22)]
    ['1st', '2nd', '3rd', '10th', '11th', '22nd']
    """
    suffix = "th" if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
