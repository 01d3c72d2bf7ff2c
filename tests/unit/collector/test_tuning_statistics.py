"""Gains of pairs and their intervals, and losses with and without a setting."""

import math

import numpy as np
import pytest

from tlkit.collector.tuning.losses import compare, mean_losses
from tlkit.collector.tuning.statistics import (
    MIN_PAIRS,
    estimate,
    gain_of_pair,
    interval,
    is_gain,
    is_hopeless,
    step_times,
    warm_up_of,
)


def test_an_interval_of_few_pairs_is_all_of_them() -> None:
    """Four values do not tell how far the next may lie: the interval ends at the smallest and the largest."""
    gains = [0.10, 0.13, 0.11, 0.20]

    assert interval(gains[:3]) is None
    assert interval(gains) == (0.10, 0.20)
    assert estimate(gains) == pytest.approx(0.12)


def test_intervals_narrow_with_more_pairs_and_hold_the_truth() -> None:
    """Of 300 tunings with eight noisy pairs each, at most one in ten intervals misses the true median."""
    random = np.random.default_rng(3)
    missed, widths = 0, []
    for _ in range(300):
        bounds = interval(random.normal(0.2, 0.05, 8).tolist())
        assert bounds is not None
        missed += not bounds[0] <= 0.2 <= bounds[1]
        widths.append(bounds[1] - bounds[0])
    many = interval(random.normal(0.2, 0.05, 60).tolist())

    assert missed <= 30
    assert many is not None
    assert many[1] - many[0] < np.median(widths) / 2


def test_chance_is_hardly_ever_kept() -> None:
    """Settings without any effect, looked at after each of up to eight rounds: at most one in fifty is kept."""
    random = np.random.default_rng(4)
    kept = 0
    for _ in range(500):
        gains = random.normal(0.0, 0.1, 8).tolist()
        kept += any(is_gain(gains[:count]) for count in range(MIN_PAIRS, 9))

    assert kept <= 10


@pytest.mark.parametrize(
    ("gains", "kept", "hopeless"),
    [
        ([0.3, 0.31, 0.29], False, False),  # too few
        ([0.3, 0.31, 0.29, 0.33], True, False),
        ([0.015, 0.012, 0.018, 0.011], False, True),  # sure, and not worth it
        ([0.3, -0.1, 0.2, 0.4], False, False),  # chance may be all
        ([0.021, 0.03, 0.05, 0.09], False, False),  # of many settings one looks like this by chance
        ([-0.1, -0.2], False, True),
        ([0.01, -0.2], False, False),
        ([0.01, -0.2, 0.0], False, True),
        ([0.04, -0.2, -0.1, 0.05, -0.1], False, True),  # half of them slower
    ],
)
def test_what_is_kept_and_what_is_given_up(gains: list[float], kept: bool, hopeless: bool) -> None:
    """Kept if the interval excludes 0 and the gain is more than 2 %; given up when more pairs would change nothing."""
    assert is_gain(gains) is kept
    assert is_hopeless(gains) is hopeless


def test_a_gain_is_a_share_of_the_step() -> None:
    """Half the time is 0.5, twice the time -1."""
    assert gain_of_pair(100.0, 50.0) == 0.5
    assert gain_of_pair(100.0, 200.0) == -1.0
    assert MIN_PAIRS >= 4


def test_steps_are_the_time_between_their_ends() -> None:
    """Averaged over ranks, cut to what all have, without the warm-up; step 0 has no begin."""
    ends = [[0, 100, 200, 300, 1000], [0, 200, 400, 600]]

    assert step_times(ends, 1).tolist() == [150.0, 150.0, 150.0]
    assert step_times(ends, 3).tolist() == [150.0]
    assert step_times([[5]], 1).tolist() == step_times([], 1).tolist() == []
    assert warm_up_of(60) == 10


CURVE = [2.0 / (1 + 0.1 * step) for step in range(30)]


def test_losses_that_are_the_same_and_those_that_differ_by_rounding() -> None:
    """Rounding is small at first and grows."""
    rounded = [loss * (1 + 1e-7 * 1.2**step) for step, loss in enumerate(CURVE)]

    assert compare([CURVE], CURVE).verdict == "same"
    assert compare([CURVE], rounded).verdict == "rounding"
    assert compare([CURVE], [loss * 1.0009 for loss in CURVE]).verdict == "changed"


def test_other_data_change_the_losses_at_once() -> None:
    """Workers that repeat each batch, as an IterableDataset does that does not ask which worker it is in."""
    repeated = [CURVE[step // 2] for step in range(30)]
    found = compare([CURVE, CURVE], repeated)

    assert found.verdict == "changed"
    assert found.step > 0
    assert found.difference > 0.01
    assert found.repeats


def test_runs_that_do_not_repeat_are_compared_within_what_they_differ_by() -> None:
    """A script without a seed: its own runs differ by 3 %."""
    random = np.random.default_rng(5)
    runs = [[loss * (1 + random.normal(0, 0.03)) for loss in CURVE] for _ in range(4)]
    found = compare(runs[:3], runs[3])

    assert not found.repeats
    assert found.verdict == "rounding"
    assert compare(runs[:3], [loss * 1.4 for loss in CURVE]).verdict == "changed"


def test_losses_that_are_not_there() -> None:
    """backward() of something that is no number; and a loss that has become one that is none (nan)."""
    nothing: list[float | None] = [None] * 30
    broken = [*CURVE[:10], None, *CURVE[11:]]

    assert compare([nothing], nothing).verdict == "unknown"
    assert compare([], CURVE).verdict == "unknown"
    assert compare([CURVE], broken).verdict == "changed"
    assert math.isinf(compare([CURVE], broken).difference)
    assert mean_losses([[1.0, 2.0, 5.0], [3.0, None]]) == [2.0, None]
