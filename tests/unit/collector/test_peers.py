"""Ranks that are slower than their peers, and steps that are longer than the others, in numbers made for it."""

from collections.abc import Callable

import numpy as np
import pytest

from tlkit.collector.model.pattern import find_pattern
from tlkit.collector.model.peers import beyond_input, find_excess, find_lapses

#: Own work of a rank that is not slow, and the delay of one that is (ms), and what a step takes besides.
WORK, MORE, BESIDES = 100.0, 40.0, 5.0
STEPS = 60


def jitter(ranks: int, steps: int, ratio: float, seed: int) -> np.ndarray:
    """Healthy work: lognormal, [rank, step], in ms."""
    return np.asarray(WORK * np.random.default_rng(seed).lognormal(0.0, ratio, (ranks, steps)))


def step_of(work: np.ndarray) -> float:
    return float(work.max(axis=0).mean()) + BESIDES


def named(more: np.ndarray, ratio: float = 0.02, seed: int = 0) -> tuple[tuple[int, ...], np.ndarray]:
    """The slow ranks, and how much longer than their peers they work in a mean step."""
    ranks, steps = more.shape
    work = jitter(ranks, steps, ratio, seed) + more
    excess = find_excess(work, step_of(work))
    assert excess is not None
    assert excess.excess_ns.shape == more.shape
    assert np.array_equal(excess.slow, excess.excess_ns != 0)
    return excess.rows, excess.excess_ns.mean(axis=1)


def delays(ranks: int, slow: list[int], when: Callable[[np.ndarray], np.ndarray] = np.ones_like) -> np.ndarray:
    """MORE on some ranks in some steps, or a share of it: [rank, step]."""
    more = np.zeros((ranks, STEPS))
    more[slow] = MORE * when(np.arange(STEPS).astype(float))
    return more


def test_healthy_ranks_are_seldom_named() -> None:
    """1 to 15 % of jitter on 2 to 64 ranks: an excess of 5 % of a step in no more than 2 % of the runs."""
    alarms = 0
    for seed in range(200):
        random = np.random.default_rng([seed, 1])
        ranks, ratio = int(random.choice([2, 3, 4, 8, 16, 64])), random.uniform(0.01, 0.15)
        work = jitter(ranks, int(random.integers(20, 200)), ratio, seed)
        excess = find_excess(work, step_of(work))
        alarms += excess is not None and excess.excess_ns.mean(axis=1).max() >= 0.05 * step_of(work)
    assert alarms <= 4


@pytest.mark.parametrize(
    ("ranks", "slow"),
    [(2, [1]), (4, [0]), (8, [3]), (64, [63]), (8, [1, 5]), (4, [0, 1, 2]), (3, [0, 2]), (8, [0, 1, 2, 3, 4, 5, 6])],
)
@pytest.mark.parametrize("ratio", [0.01, 0.05])
def test_ranks_that_are_always_slow_are_found(ranks: int, slow: list[int], ratio: float) -> None:
    """One, several, three of four, all but one."""
    rows, excess = named(delays(ranks, slow), ratio)

    assert sorted(rows) == slow
    assert excess[slow].tolist() == pytest.approx([MORE] * len(slow), rel=0.2)


@pytest.mark.parametrize(
    ("when", "ratio"),
    [
        (lambda step: step % 5 == 2, 0.2),
        (lambda step: (step >= 20) & (step < 40), 1 / 3),
        (lambda step: 2 * step / STEPS, 1.0),
        (lambda step: step == 30, 1 / 60),
    ],
    ids=["every fifth step", "window", "growing", "one step"],
)
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_a_rank_that_is_slow_now_and_then_is_found(
    ranks: int, when: Callable[[np.ndarray], np.ndarray], ratio: float
) -> None:
    rows, excess = named(delays(ranks, [1], when))

    assert rows == (1,)
    assert excess[1] == pytest.approx(MORE * ratio, rel=0.2)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_that_are_slow_in_turn_are_all_found(ranks: int) -> None:
    """Each is slow by itself in its own steps."""
    more = np.zeros((ranks, STEPS))
    more[np.arange(STEPS) % ranks, np.arange(STEPS)] = MORE
    rows, excess = named(more)

    assert sorted(rows) == list(range(ranks))
    assert excess.sum() == pytest.approx(MORE, rel=0.2)


def test_ranks_whose_turn_comes_once_are_named_with_those_whose_comes_twice() -> None:
    """Fifteen ranks in turn, nineteen steps: what one has done twice the other has done once."""
    turns, steps = list(range(3, 63, 4)), range(19)
    more = np.zeros((64, len(steps)))
    more[[turns[step % 15] for step in steps], steps] = MORE
    rows, excess = named(more)

    assert sorted(rows) == turns
    assert excess.sum() == pytest.approx(MORE, rel=0.2)


def test_half_of_the_ranks_that_are_slow_in_the_same_steps_do_not_hide_each_other() -> None:
    """The median of four ranks of which two are slow is that of nobody."""
    rows, mean = named(delays(4, [1, 2], lambda step: step % 5 == 0))

    assert sorted(rows) == [1, 2]
    assert mean[[1, 2]] == pytest.approx(MORE / 5, rel=0.1)


def test_a_slow_rank_is_found_in_the_right_steps() -> None:
    more = delays(4, [2], lambda step: (step >= 20) & (step < 40))
    work = jitter(4, STEPS, 0.01, 0) + more
    excess = find_excess(work, step_of(work))

    assert excess is not None
    assert (excess.slow[2] == (more[2] > 0)).mean() > 0.95
    assert not excess.slow[[0, 1, 3]].any()


def test_a_rank_that_is_hardly_slower_is_not_named() -> None:
    """0.5 % of a step, however regular."""
    assert find_excess(np.array([[100.0] * STEPS, [100.5] * STEPS]), 100.0) is None


@pytest.mark.parametrize("shape", [(1, 60), (4, 5)])
def test_alone_or_in_few_steps_there_is_nothing_to_compare(shape: tuple[int, int]) -> None:
    work = np.full(shape, WORK)
    work[0] *= 3

    assert find_excess(work, WORK) is None


def lapses(more: np.ndarray, ratio: float = 0.02, seed: int = 0) -> np.ndarray:
    steps = jitter(1, len(more), ratio, seed)[0] + more
    return find_lapses(steps, float(steps.mean()))


def test_healthy_steps_seldom_lapse() -> None:
    """1 to 15 % of jitter: 5 % of the time in no more than 2 % of the runs."""
    alarms = 0
    for seed in range(200):
        random = np.random.default_rng([seed, 2])
        count, ratio = int(random.integers(20, 200)), random.uniform(0.01, 0.15)
        alarms += lapses(np.zeros(count), ratio, seed).mean() >= 0.05 * WORK
    assert alarms <= 4


@pytest.mark.parametrize("ratio", [0.01, 0.04])
@pytest.mark.parametrize("until", [25, 40, 50])
def test_a_stretch_of_long_steps_lapses(until: int, ratio: float) -> None:
    """From step 20 on, for up to half of the run."""
    more = np.where((np.arange(STEPS) >= 20) & (np.arange(STEPS) < until), MORE, 0.0)
    found = lapses(more, ratio)

    assert ((found > 0) == (more > 0)).mean() > 0.9
    assert found.sum() == pytest.approx(more.sum(), rel=0.25)


def test_steps_that_grow_lapse() -> None:
    more = 2 * MORE * np.arange(STEPS) / STEPS
    found = lapses(more)

    assert found[-10:].mean() == pytest.approx(more[-10:].mean() - more[:18].mean(), rel=0.25)
    assert found[:10].sum() < 0.05 * found.sum()


@pytest.mark.parametrize("at", [[30], [3, 17, 44], [10, 20, 30, 40, 50]])
def test_stalls_lapse(at: list[int]) -> None:
    """Single steps of 300 ms more."""
    more = np.zeros(STEPS)
    more[at] = 300
    found = lapses(more)

    assert np.flatnonzero(found).tolist() == at
    assert found[at].tolist() == pytest.approx([300.0] * len(at), rel=0.1)


def test_of_few_steps_none_lapses() -> None:
    assert find_lapses(np.array([1.0, 1.0, 9.0, 1.0]), 3.0).tolist() == [0.0] * 4


NUMBERS = np.arange(100, 160)
INDEX = np.arange(60)


@pytest.mark.parametrize("shape", ["second half", "now and then", "any size"])
def test_larger_inputs_are_no_lapses(shape: str) -> None:
    """Images that become larger halfway, long sentences among short ones, batches of all sizes: what they take is explained."""
    dice = np.random.default_rng(5)
    sizes = {
        "second half": np.repeat([1000, 1800], 60),
        "now and then": np.where(np.arange(120) % 40 == 7, 3000, 1000),
        "any size": dice.integers(500, 3000, 120),
    }[shape]
    work = (20e6 + 30e3 * sizes) * dice.normal(1, 0.01, 120)
    left = beyond_input(work, sizes)

    assert not find_lapses(left, float(work.mean())).any()
    # A stall is one all the same, also in a step with a large input.
    stalled = work.copy()
    stalled[[30, 87]] += 2.0 * work.mean()
    found = find_lapses(beyond_input(stalled, sizes), float(work.mean()))
    assert np.flatnonzero(found).tolist() == [30, 87]


def test_an_input_of_one_size_explains_nothing() -> None:
    """Nor does one that is hardly larger, or unknown."""
    work = np.where(np.arange(60) % 20 == 3, 90e6, 30e6)
    hardly = np.where(work > 30e6, 1005, 1000)
    for sizes in (np.full(60, 1000), np.zeros(60, dtype=np.int64)):
        assert (beyond_input(work, sizes) == work).all()
    assert find_lapses(beyond_input(work, hardly), float(work.mean())).any()


@pytest.mark.parametrize(
    ("amounts", "kind", "words"),
    [
        (np.full(60, 5.0), "always", "in every step"),
        (np.where(INDEX % 7 == 3, 0.0, 5.0), "always", "in every step"),
        (INDEX * 1.0, "growing", "more and more from step to step"),
        (np.where(INDEX % 10 == 4, 5.0, 0.0), "periodic", "in every 10th step"),
        (np.where(INDEX % 2 == 0, 5.0, 0.0), "periodic", "in every second step"),
        (np.where(INDEX % 3 == 0, 5.0, 0.0), "periodic", "in every 3rd step"),
        (np.where((INDEX >= 20) & (INDEX < 40), 5.0, 0.0), "window", "in steps 120 to 139"),
        (np.where(np.isin(INDEX, [3, 4, 19, 40]), 5.0, 0.0), "sometimes", "in 4 of 60 steps"),
        (np.where(INDEX == 30, 5.0, 0.0), "sometimes", "in 1 of 60 steps"),
        (np.zeros(60), "sometimes", "in 0 of 60 steps"),
        (np.where(INDEX % 10 == 4, 50.0, 1.0), "periodic", "in every 10th step"),
    ],
)
def test_patterns_have_names(amounts: np.ndarray, kind: str, words: str) -> None:
    pattern = find_pattern(amounts, NUMBERS)

    assert (pattern.kind, pattern.words) == (kind, words)


def test_a_rhythm_has_its_period_and_steps() -> None:
    evidence = find_pattern(np.where(INDEX % 20 == 5, 5.0, 0.0), NUMBERS).evidence

    assert evidence == {"steps_ratio": 0.05, "steps": [105, 125, 145], "period": 20}


def test_lessons_that_grow_by_stages_are_no_slower_stretch() -> None:
    """Nor if a few steps evaluate as well: their input is much larger, and their work is not."""
    sizes = np.repeat([12, 20, 30, 40], 15)
    work = (10.0 + 2.0 * sizes) * np.random.default_rng(1).lognormal(0.0, 0.01, len(sizes))
    sizes[[7, 22, 37, 52]] *= 9
    left = beyond_input(work, sizes)
    stages = [np.median(stage) for stage in np.split(left, 4)]

    assert max(stages) == pytest.approx(min(stages), rel=0.05)
