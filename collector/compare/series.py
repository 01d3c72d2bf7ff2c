"""Whether the steps of one run are longer than those of another, beyond chance.

Three statistics are judged: the mean (throughput, which decides first), the median and the 95th percentile.  Each has two
safeguards against chance, and a change counts only if both agree:

- a block bootstrap of the ratio (Künsch 1989, "The jackknife and the bootstrap for general stationary observations"): whole
  blocks of neighbouring steps are drawn, since steps that follow each other resemble each other;
- a permutation test: the blocks of both runs are shuffled together and cut apart again.  For equal runs it is exact however
  heavy their tails are, where the bootstrap of a mean is too sure of itself.

What the program does by plan is no chance: checkpoints, and stalls that come at regular intervals.  Their number in a run is
taken as given, but for one more or less that a window may cut off; only their lengths vary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from ..model.arrays import Floats, Integers, Matrix

Resamples = Matrix

STATISTICS: Final = ("mean", "median", "p95")
#: How often each may be wrong for equal runs, both directions together: five in a hundred in all, most of them for the mean.
LEVELS: Final = {"mean": 0.03, "median": 0.01, "p95": 0.01}

_RESAMPLES: Final = 2000
#: Resamples at a time, so that long runs need little memory.
_AT_ONCE: Final = 250
#: Shorter runs are shuffled step by step, unless their steps resemble each other; so many blocks a run has at least.
_MIN_STEPS_FOR_BLOCKS: Final = 27
_MIN_BLOCKS: Final = 5
#: A stall takes this many times as long as the median step.
_STALL_RATIO: Final = 2.0
#: Stalls are regular if so few random positions would be as evenly spaced; and there have to be some to tell.
_REGULAR_LEVEL: Final = 0.005
_MIN_REGULAR: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """The steps of a run, in order."""

    durations_ns: Floats
    checkpoint_ns: Floats
    """Of each step, how long a checkpoint took in it; 0 without one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """A statistic of the steps, before and now."""

    name: str
    before_ns: float
    after_ns: float
    interval: tuple[float, float]
    """Of the ratio: 97 % for the mean, 99 % for the others, so that all three are right in 95 of 100 comparisons."""

    @property
    def ratio(self) -> float:
        """Now over before."""
        return self.after_ns / max(self.before_ns, 1.0)

    @property
    def is_significant(self) -> bool:
        """Whether it is more than chance."""
        low, high = self.interval
        return not low <= 1 <= high

    def is_slower(self, allowed: float = 0.0) -> bool:
        """Whether it has grown by more than `allowed` (0.05: 5 %) and by more than chance."""
        return self.is_significant and self.ratio > 1 + allowed


@dataclass(frozen=True, slots=True)
class _Split:
    """Steps without what the program does by plan, and the lengths of that."""

    base: Floats
    planned: Floats

    @property
    def rate(self) -> float:
        return len(self.planned) / len(self.base)


def compare_samples(first: Sample, second: Sample) -> dict[str, Ratio]:
    """Each of STATISTICS of `second` over that of `first`."""
    one, two = first.durations_ns, second.durations_ns
    values = {name: (_statistic(name, one), _statistic(name, two)) for name in STATISTICS}
    intervals = dict.fromkeys(STATISTICS, (0.0, float("inf")))
    if len(one) > 1 and len(two) > 1:
        block = max(_block_length(one), _block_length(two))
        intervals = _intervals(first, second, block)
    return {
        name: Ratio(name=name, before_ns=before, after_ns=after, interval=intervals[name])
        for name, (before, after) in values.items()
    }


def _statistic(name: str, values: Floats) -> float:
    return float(_statistics(name, values[None, :])[0]) if len(values) else 0.0


def _statistics(name: str, rows: Resamples) -> Floats:
    """Of each row."""
    if name == "mean":
        found: Floats = rows.mean(axis=1)
    else:
        found = np.quantile(rows, 0.5 if name == "median" else 0.95, axis=1)
    return found


def _block_length(values: Floats) -> int:
    """How many neighbouring steps stay together: as far as they resemble each other, by the autocorrelation of ranks."""
    count = len(values)
    usual = int(count ** (1 / 3)) if count >= _MIN_STEPS_FOR_BLOCKS else 1
    ordered = np.sort(values)
    # Of equal values each has the middle rank.
    ranks = (np.searchsorted(ordered, values) + np.searchsorted(ordered, values, side="right")) / 2
    ranks -= ranks.mean()
    power = max(float(ranks @ ranks), 1e-9)
    reach = 1.0
    for lag in range(1, count // _MIN_BLOCKS):
        correlation = float(ranks[lag:] @ ranks[:-lag]) / power
        if correlation < 1 / count**0.5:
            break
        reach += 2 * correlation
    return max(1, min(max(usual, int(np.ceil(reach))), count // _MIN_BLOCKS))


# What comes by plan.


def _split(sample: Sample) -> _Split:
    planned = np.minimum(sample.checkpoint_ns, sample.durations_ns)
    base = sample.durations_ns - planned
    usual = float(np.median(base))
    stalls = np.flatnonzero(base > _STALL_RATIO * usual)
    if _are_regular(stalls, len(base)):
        planned = planned.copy()
        planned[stalls] += base[stalls] - usual
        base = base.copy()
        base[stalls] = usual
    return _Split(base, planned[planned > 0])


def _are_regular(positions: Integers, count: int) -> bool:
    """Whether stalls are spaced more evenly than chance would put them.

    Args:
        positions: their steps, ascending.
        count: steps of the run.
    """
    if len(positions) < _MIN_REGULAR or len(positions) > count / 3:
        return False
    spread = int(np.ptp(np.diff(positions)))
    random = np.random.default_rng(0)
    drawn = np.argpartition(random.random((_RESAMPLES, count)), len(positions), axis=1)[:, : len(positions)]
    spreads = np.ptp(np.diff(np.sort(drawn, axis=1), axis=1), axis=1)
    return float((1 + (spreads <= spread).sum()) / (1 + _RESAMPLES)) <= _REGULAR_LEVEL


# Intervals.


def _intervals(first: Sample, second: Sample, block: int) -> dict[str, tuple[float, float]]:
    splits = _split(first), _split(second)
    found = {}
    for name in STATISTICS:
        random = np.random.default_rng(1)
        level = LEVELS[name]
        if name == "mean":
            before, after = (_drawn_means(split, block, random) for split in splits)
        else:
            before, after = (
                _statistics(name, _drawn(sample.durations_ns, block, random)) for sample in (first, second)
            )
        low, high = np.quantile(after / np.maximum(before, 1.0), [level / 2, 1 - level / 2]).tolist()
        if name == "mean":
            margin = _one_of_plan(*splits) / max(float(first.durations_ns.mean()), 1.0)
            low, high = low - margin, high + margin
        found[name] = (max(low, 0.0), high)
        if not low <= 1 <= high and not _is_beyond_chance(name, first, second, splits, block):
            found[name] = (min(low, 1.0), max(high, 1.0))
    return found


def _one_of_plan(one: _Split, two: _Split) -> float:
    """What one more or less of what comes by plan makes in a mean step, ns; 0 if both runs have it equally often."""
    if one.rate == two.rate:
        return 0.0
    lengths = np.concatenate((one.planned, two.planned))
    return float(lengths.mean()) / min(len(one.base), len(two.base))


def _drawn(values: Floats, block: int, random: np.random.Generator) -> Resamples:
    """Runs of the same length made of random blocks: float[resample, step]."""
    count = len(values)
    block = min(block, count)  # what came by plan may be most of a short run
    starts = random.integers(0, count - block + 1, size=(_RESAMPLES, -(-count // block)))
    rows = (starts[:, :, None] + np.arange(block)).reshape(_RESAMPLES, -1)[:, :count]
    resampled: Resamples = values[rows]
    return resampled


def _drawn_means(split: _Split, block: int, random: np.random.Generator) -> Floats:
    """Means of resampled runs, which have as much of what comes by plan as the run."""
    means: Floats = _drawn(split.base, block, random).mean(axis=1)
    if len(split.planned):
        drawn = random.integers(0, len(split.planned), size=(_RESAMPLES, len(split.planned)))
        means = means + split.planned[drawn].sum(axis=1) / len(split.base)
    return means


def _is_beyond_chance(name: str, first: Sample, second: Sample, splits: tuple[_Split, _Split], block: int) -> bool:
    """Whether shuffled blocks of both runs seldom differ as much as the runs do, in the same direction."""
    if name == "mean":
        difference = float(second.durations_ns.mean() - first.durations_ns.mean())
        by_chance = _shuffled(_differences, [split.base for split in splits], block)
        by_chance = np.sign(difference) * (by_chance + _shuffled_plan(*splits)) + _one_of_plan(*splits)
        observed = abs(difference)
    else:
        quantile = 0.5 if name == "median" else 0.95
        runs = [first.durations_ns, second.durations_ns]
        if _statistic(name, runs[0]) > _statistic(name, runs[1]):
            runs.reverse()
        test = partial(_exceeding, quantile)
        by_chance = _shuffled(test, runs, block)
        observed = float(test(runs[0][None, :], runs[1][None, :])[0])
    return float((1 + (by_chance >= observed).sum()) / (1 + len(by_chance))) <= LEVELS[name] / 2


def _differences(first: Resamples, second: Resamples) -> Floats:
    """Of the means of each pair of rows."""
    found: Floats = second.mean(axis=1) - first.mean(axis=1)
    return found


def _exceeding(quantile: float, first: Resamples, second: Resamples) -> Floats:
    """Share of the steps of the second run that are longer than the first run's quantile, of each pair of rows.

    Quantiles themselves jump when shuffled, where a run's steps are of two lengths.
    """
    found: Floats = (second > np.quantile(first, quantile, axis=1)[:, None]).mean(axis=1)
    return found


def _shuffled(test: Callable[[Resamples, Resamples], Floats], runs: Sequence[Floats], block: int) -> Floats:
    """What `test` gives for shuffled blocks of both runs, cut apart again into runs of the same lengths."""
    cut, steps = len(runs[0]), np.concatenate(runs)
    # Blocks do not reach from one run into the other.
    blocks_of_first = np.arange(cut) // block
    of_block = np.concatenate((blocks_of_first, blocks_of_first[-1] + 1 + np.arange(len(steps) - cut) // block))
    random = np.random.default_rng(2)
    found = []
    for _ in range(0, _RESAMPLES, _AT_ONCE):
        keys = random.random((_AT_ONCE, int(of_block[-1]) + 1))
        rows = steps[np.argsort(keys[:, of_block], axis=1, kind="stable")]
        found.append(test(rows[:, :cut], rows[:, cut:]))
    return np.concatenate(found)


def _shuffled_plan(one: _Split, two: _Split) -> Floats | float:
    """What chance makes of the lengths of what comes by plan, in the difference of means, ns."""
    pooled = np.concatenate((one.planned, two.planned))
    if not len(one.planned) or not len(two.planned):
        return 0.0
    shuffled = np.random.default_rng(3).permuted(np.tile(pooled - pooled.mean(), (_RESAMPLES, 1)), axis=1)
    cut = len(one.planned)
    difference: Floats = shuffled[:, cut:].sum(axis=1) / len(two.base) - shuffled[:, :cut].sum(axis=1) / len(one.base)
    return difference
