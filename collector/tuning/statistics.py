"""What a setting gains, from step times with and without it, and how sure that is.

Times with and without are taken shortly after each other, so that what else happens on the machine meets both: each such pair
gives one gain, and their median is the estimate.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist, median
from typing import Final

import numpy as np

#: A gain below this is not worth a setting.
WORTH_RATIO: Final = 0.02
#: Pairs below this number say nothing of their spread.
MIN_PAIRS: Final = 4
#: So many are enough to tell that something gains nothing, or makes it worse.
MIN_PAIRS_AGAINST: Final = 2
#: What the steps of a trial take together, at least: shorter ones show little but what else the machine did meanwhile.
MIN_TRIAL_S: Final = 3.0
#: But no more than so many times the steps that were asked for.
_MOST_TIMES: Final = 10
_RESAMPLES: Final = 4000
_LEVEL: Final = 0.95

#: Quantile 0.975 of Student's t by degrees of freedom, 1 to 30.
_STUDENT: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
#: And quantile 0.995, 1 to 20.
_STUDENT_995: Final = (
    63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169,
    3.106, 3.055, 3.012, 2.977, 2.947, 2.921, 2.898, 2.878, 2.861, 2.845,
)  # fmt: skip


def gain_of_pair(without_ns: float, with_ns: float) -> float:
    """The share of the step time that goes.

    >>> gain_of_pair(100.0, 75.0)
    0.25
    """
    return (without_ns - with_ns) / without_ns


def estimate(gains: Sequence[float]) -> float:
    """The gain that pairs show: their median."""
    return median(gains)


def interval(gains: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """95 % interval of the median gain, by bootstrap; None for fewer pairs than MIN_PAIRS.

    Percentiles of few values are too narrow: they are taken further out, as far as Student's t is wider than the normal
    distribution.  Of four or five pairs that leaves the smallest and the largest.

    Source: T. Hesterberg, "What Teachers Should Know about the Bootstrap", The American Statistician 69 (2015), section 4.2 and
    5.3, the expanded percentile interval.
    """
    count = len(gains)
    if count < MIN_PAIRS:
        return None
    student = _STUDENT[min(count - 2, len(_STUDENT) - 1)]
    tail = NormalDist().cdf(-math.sqrt(count / (count - 1)) * student)
    random = np.random.default_rng(seed)
    resampled = np.median(random.choice(np.asarray(gains, dtype=float), size=(_RESAMPLES, count)), axis=1)
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return float(low), float(high)


def is_gain(gains: Sequence[float]) -> bool:
    """Whether a setting is worth keeping: the interval excludes 0, the gain is more than WORTH_RATIO, and it is no lucky look.

    A tuning looks at many settings, and at each after every round, so that an interval of 95 % excludes 0 by chance more often
    than in one of twenty tunings.  Therefore Student's t of the pairs has to be beyond its quantile 0.995, too.
    """
    bounds = interval(gains)
    if bounds is None or bounds[0] <= 0 or estimate(gains) <= WORTH_RATIO:
        return False
    values = np.asarray(gains, dtype=float)
    needed = _STUDENT_995[min(len(gains) - 2, len(_STUDENT_995) - 1)]
    return bool(values.mean() * math.sqrt(len(gains)) > needed * values.std(ddof=1))


def is_hopeless(gains: Sequence[float]) -> bool:
    """Whether more pairs would be a waste: all are slower, or of several none is clearly quicker, or half of them are slower."""
    if len(gains) < MIN_PAIRS_AGAINST:
        return False
    if max(gains) < -WORTH_RATIO:
        return True
    if len(gains) > MIN_PAIRS_AGAINST and max(gains) < WORTH_RATIO:
        return True
    return len(gains) >= MIN_PAIRS and estimate(gains) <= 0


def step_times(ends_ns: Sequence[Sequence[int]], warm_up: int) -> np.ndarray:
    """Durations of the steps that count: float64[step], ns, the mean over ranks.

    Args:
        ends_ns: when each step ended, by rank; ranks may have ended at different numbers of steps.
        warm_up: leading steps to leave out, the first of them being step 0, whose begin nobody knows.
    """
    length = min((len(ends) for ends in ends_ns), default=0)
    if length < 2:  # noqa: PLR2004  no interval
        return np.zeros(0)
    durations: np.ndarray = np.diff(np.array([ends[:length] for ends in ends_ns], dtype=np.int64), axis=1).mean(axis=0)
    return durations[max(warm_up - 1, 0) :].astype(float)


def steps_of_trial(wanted: int, step_ns: float) -> int:
    """Steps of a trial: as many as are wanted, and more if they are short.

    >>> [steps_of_trial(60, ms * 1e6) for ms in (100, 10, 1)]
    [60, 300, 600]
    """
    return min(max(wanted, math.ceil(MIN_TRIAL_S * 1e9 / step_ns)), _MOST_TIMES * wanted)


def warm_up_of(steps: int) -> int:
    """Leading steps of a trial to leave out: a fifth, two at least and ten at most.

    >>> [warm_up_of(steps) for steps in (5, 30, 200)]
    [2, 6, 10]
    """
    return min(max(2, steps // 5), 10)
