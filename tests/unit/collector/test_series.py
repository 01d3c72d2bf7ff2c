"""Steps of two runs: a change is found, and the same code twice is not one."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tlkit.collector.compare.series import STATISTICS, Sample, compare_samples

Random = np.random.Generator
Steps = Callable[[Random, int], np.ndarray]


def sample(durations_ms: np.ndarray, checkpoint_ms: np.ndarray | None = None) -> Sample:
    """A run's steps, in ms."""
    checkpoints = np.zeros_like(durations_ms) if checkpoint_ms is None else checkpoint_ms
    return Sample(durations_ns=durations_ms * 1e6, checkpoint_ns=checkpoints * 1e6)


def is_alarm(first: Sample, second: Sample, allowed: float = 0.0) -> bool:
    """Whether any statistic is slower beyond chance."""
    return any(ratio.is_slower(allowed) for ratio in compare_samples(first, second).values())


def jittered(random: Random, count: int) -> np.ndarray:
    """46 ms, give or take 5 %."""
    return 46 * (1 + 0.05 * random.standard_normal(count))


def lognormal(random: Random, count: int) -> np.ndarray:
    """The longest of a hundred takes twelve times the median."""
    return 46 * random.lognormal(0, 1, count)


def pareto(random: Random, count: int) -> np.ndarray:
    """So heavy a tail that its variance is infinite."""
    return np.asarray(46 * (1 + random.pareto(1.5, count)))


def with_rare_stalls(random: Random, count: int) -> np.ndarray:
    """Three steps in a hundred take a second."""
    return np.asarray(jittered(random, count) + 1000 * (random.random(count) < 0.03))


def in_rhythm(random: Random, count: int) -> np.ndarray:
    """Every tenth step takes a second, from anywhere on."""
    return np.asarray(jittered(random, count) + 1000 * ((np.arange(count) + random.integers(10)) % 10 == 0))


def wandering(random: Random, count: int) -> np.ndarray:
    """Each step resembles the one before (correlation 0.5)."""
    noise, values = random.standard_normal(count), np.empty(count)
    values[0] = noise[0]
    for row in range(1, count):
        values[row] = 0.5 * values[row - 1] + 0.75**0.5 * noise[row]
    return 46 * (1 + 0.1 * values)


@pytest.mark.parametrize("steps", [jittered, lognormal, pareto, with_rare_stalls, in_rhythm, wandering])
def test_the_same_code_twice_is_rarely_an_alarm(steps: Steps) -> None:
    """Of 120 pairs of equal runs of 60 steps, judged by 5 %, at most 5 in a hundred: whatever the tails."""
    random = np.random.default_rng(11)
    pairs = examples(120)
    alarms = sum(is_alarm(sample(steps(random, 60)), sample(steps(random, 60)), 0.05) for _ in range(pairs))

    assert alarms <= 0.05 * pairs


def test_a_tenth_is_found() -> None:
    """A shift of 10 % with 5 % jitter over 60 steps, in at least 95 of 100 pairs."""
    random = np.random.default_rng(12)
    pairs = examples(60)
    found = sum(is_alarm(sample(jittered(random, 60)), sample(1.1 * jittered(random, 60)), 0.05) for _ in range(pairs))

    assert found >= 0.95 * pairs


@pytest.mark.parametrize("every", [5, 10, 20, 30])
def test_checkpoints_are_found_though_the_median_is_the_same(every: int) -> None:
    """Mean 46 → 196 ms, however rare they are: they are no chance."""
    random = np.random.default_rng(13)
    pairs = examples(20)
    found = 0
    for _ in range(pairs):
        stalled = (np.arange(60) + random.integers(every)) % every == 0
        checkpoints = 150.0 * every * stalled
        ratios = compare_samples(sample(jittered(random, 60)), sample(jittered(random, 60) + checkpoints, checkpoints))
        found += ratios["mean"].is_slower(0.05) and not ratios["median"].is_slower(0.05)

    assert found == pairs


def test_stalls_in_a_rhythm_are_found_without_a_name() -> None:
    """Every tenth step takes 1.5 s more, in a trace that does not say why."""
    random = np.random.default_rng(14)
    stalls = 1500.0 * (np.arange(60) % 10 == 3)

    assert all(is_alarm(sample(jittered(random, 60)), sample(jittered(random, 60) + stalls), 0.05) for _ in range(20))


def test_one_checkpoint_more_is_chance() -> None:
    """The window of a recording cuts it off or not; two more are a change."""
    random = np.random.default_rng(15)

    def with_checkpoints(count: int) -> Sample:
        checkpoints = np.zeros(60)
        checkpoints[np.arange(count) * 12 + 3] = 1000
        return sample(jittered(random, 60) + checkpoints, checkpoints)

    assert not is_alarm(with_checkpoints(2), with_checkpoints(3), 0.05)
    assert is_alarm(with_checkpoints(2), with_checkpoints(4), 0.05)


def test_longer_checkpoints_are_found() -> None:
    """As many of them, 500 → 700 ms each."""
    random = np.random.default_rng(16)

    def of(length_ms: float) -> Sample:
        checkpoints = length_ms * (1 + 0.02 * random.standard_normal(60)) * (np.arange(60) % 10 == 3)
        return sample(jittered(random, 60) + checkpoints, checkpoints)

    assert compare_samples(of(500), of(700))["mean"].is_slower(0.05)
    assert not is_alarm(of(500), of(500), 0.05)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.floats(1, 1e4), min_size=1, max_size=30),
    st.lists(st.floats(1, 1e4), min_size=1, max_size=30),
)
def test_any_two_runs_can_be_compared(first: list[float], second: list[float]) -> None:
    """Ratios are those of the statistics, and a run is never slower than itself."""
    one, two = np.array(first), np.array(second)
    ratios = compare_samples(sample(one), sample(two))

    assert tuple(ratios) == STATISTICS
    assert ratios["mean"].ratio == pytest.approx(two.mean() / one.mean())
    assert ratios["median"].ratio == pytest.approx(np.median(two) / np.median(one))
    for ratio in ratios.values():
        low, high = ratio.interval
        assert 0 <= low <= high
    assert not is_alarm(sample(one), sample(one))


def test_two_steps_are_compared_with_many() -> None:
    """Blocks are as long as the longer run wants them, and the shorter one has fewer steps."""
    ratios = compare_samples(sample(np.ones(2)), sample(np.ones(30)))
    assert ratios["mean"].ratio == 1
    assert not ratios["mean"].is_slower(0.05)


def test_few_steps_tell_nothing() -> None:
    """Two against two may be chance, however far apart."""
    assert not is_alarm(sample(np.array([1.0, 1.0])), sample(np.array([9.0, 9.0])))
    assert not is_alarm(sample(np.array([1.0])), sample(np.array([9.0])))
