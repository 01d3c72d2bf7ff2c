"""How much longer ranks work than their peers, and in which steps.

In a synchronous job steps of all ranks are equally long, whoever is slow: own work is what can be compared, and it needs no
common clock.  A rank's excess over the peers of the same step has a slow part (always, in a stretch of steps, growing),
which a running median shows, and single steps that stand out.  Both have to be clear of what chance does in this run: what
ranks vary by is measured from the run itself.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from .arrays import Floats, MaskMatrix, Matrix

#: Fewer steps than this show nothing but chance.
MIN_STEPS: Final = 6
#: Width of the running median, in steps.
WINDOW: Final = 9
#: A running median this many deviations of a single step above nothing is no chance (its own deviation is 0.42 of that).
CLEAR: Final = 1.3
#: A single step this many deviations above is none either.
SPIKE: Final = 6.0
#: Usual differences between ranks this many deviations of a mean above nothing are no chance.
SURE: Final = 4.0
#: Usual differences below this share of what single steps differ by are beside the point.
SMALL_BESIDE: Final = 0.25
#: What a rank usually works, beside the others: not the median, which jumps where a rank is slow in half of the steps.
USUAL_QUANTILE: Final = 0.3
#: Less than this share of a step is not worth naming a rank.
MIN_RATIO: Final = 0.02
#: A single step has to stand out by this share of a step.
MIN_SPIKE_RATIO: Final = 0.1
#: Ranks with at least this share of the largest excess are slow together.
TOGETHER_RATIO: Final = 0.5
#: Ranks that are slow now and then are named with those that are so more often, from this share of their excess on.
SELDOM_RATIO: Final = 0.2
TWICE: Final = 2
#: Inputs that differ by less tell nothing of what an element takes.
MIN_LARGER: Final = 0.01
#: Into so many groups steps are put by the size of their input.
MAX_GROUPS: Final = 100
#: A rank that is slow in so many of the steps is slow always.
ALWAYS_RATIO: Final = 0.8
#: The deviation of normal noise is so many times its median absolute deviation.
NORMAL: Final = 1.4826


@dataclass(frozen=True, kw_only=True, slots=True)
class Excess:
    """What ranks work longer than their peers: R ranks, S steps."""

    excess_ns: Matrix
    """What goes if they work as their peers do: float[R, S], 0 where nothing is clear."""
    rows: tuple[int, ...]
    """Ranks that are slow, longest excess first."""
    spread_ns: float
    """What a rank's work varies by from step to step, by chance."""

    @property
    def slow(self) -> MaskMatrix:
        """bool[R, S]."""
        slow: MaskMatrix = self.excess_ns != 0
        return slow


def find_excess(work_ns: np.ndarray, step_ns: float) -> Excess | None:
    """The clear excess of each rank's work over its peers'; None where there is nobody to compare with, or nothing clear.

    Args:
        work_ns: own work, [rank, step].
        step_ns: mean step, for what is worth a word.
    """
    ranks, steps = work_ns.shape
    if ranks < 2 or steps < MIN_STEPS:  # noqa: PLR2004  nobody to compare with
        return None
    work = work_ns.astype(np.float64)
    apart = work - work.mean(axis=0)
    spread = _spread(work, apart - np.median(apart, axis=1, keepdims=True))
    usual = np.quantile(apart, USUAL_QUANTILE, axis=1)
    behind = work - _typical_peer(work, usual, max(SURE * spread / steps**0.5, MIN_RATIO / 2 * step_ns), spread)
    smooth = _running_median(behind)
    steady = np.where(smooth > max(CLEAR * spread, MIN_RATIO * step_ns), smooth, 0.0)
    always = (steady > 0).mean(axis=1) >= ALWAYS_RATIO
    # A rank that is always slow keeps its ups and downs; another one is not made quicker than its peers.
    excess = np.where(always[:, None], smooth, np.minimum(steady, np.maximum(behind, 0.0)))
    rest = behind - excess
    spikes = np.where(rest > max(SPIKE * spread, MIN_SPIKE_RATIO * step_ns), rest, 0.0)
    excess = excess + spikes
    mean = excess.mean(axis=1)
    if mean.max() <= 0:
        return None
    often = (excess > 0).sum(axis=1)
    amount = excess.sum(axis=1) / np.maximum(often, 1)
    # Together as much; or as long each time, if not as often.  Once is enough where nobody is slow more than twice: in turn.
    enough = often > (1 if often[mean.argmax()] > TWICE else 0)
    named = (mean >= TOGETHER_RATIO * mean.max()) | (
        (amount >= TOGETHER_RATIO * amount[mean.argmax()]) & (mean >= SELDOM_RATIO * mean.max()) & enough
    )
    excess = np.where(named[:, None], excess, 0.0)
    rows = tuple(int(row) for row in np.argsort(-mean, kind="stable") if named[row])
    return Excess(excess_ns=excess, rows=rows, spread_ns=spread)


def find_lapses(steps_ns: np.ndarray, step_ns: float) -> Floats:
    """By how much steps are clearly longer than the run's usual ones, 0 for most: float[S], ns.

    As for ranks: a running median for stretches and growth, and single steps that stand out; the usual step is one of the quicker
    ones, so that a run that is slow for half of its time is found.
    """
    count = len(steps_ns)
    if count < MIN_STEPS:
        return np.zeros(count)
    values = steps_ns.astype(float)
    smooth = _running_median(values[None, :])[0]
    # Ups and downs around the running median are chance, but for those that stand out.
    spread = NORMAL * float(np.median(np.abs(values - smooth)))
    usual = float(np.quantile(smooth, USUAL_QUANTILE))
    slow = np.where(smooth - usual > max(2 * CLEAR * spread, MIN_SPIKE_RATIO * step_ns), smooth - usual, 0.0)
    excess = np.minimum(slow, np.maximum(values - usual, 0.0))
    rest = values - smooth
    spikes = np.where(rest > max(SPIKE * spread, 2 * MIN_SPIKE_RATIO * step_ns), values - usual - excess, 0.0)
    return np.asarray(excess + np.maximum(spikes, 0.0))


def beyond_input(work_ns: np.ndarray, elements: np.ndarray) -> Floats:
    """Work as it would be with the usual input: without what a larger one makes longer, or a smaller one shorter: float[S], ns.

    A batch of longer sentences or larger images is more to compute, not a step that something holds up.  How much an element
    takes is the weighted median of what groups of steps with inputs of different sizes differ by (Theil and Sen), which single
    stalls do not bend; and more input cannot take longer than by the square of its size, as attention does.

    Args:
        work_ns: float[S].
        elements: of the input, int[S]; 0 where that is unknown.

    >>> work, elements = np.array([10.0, 10, 20, 10, 40, 20, 10, 10, 20, 10]), np.array([1, 1, 2, 1, 1, 2, 1, 1, 2, 1])
    >>> beyond_input(work, elements).tolist()
    [10.0, 10.0, 10.0, 10.0, 40.0, 10.0, 10.0, 10.0, 10.0, 10.0]
    """
    work = work_ns.astype(float)
    if len(work) < MIN_STEPS or elements.min() <= 0 or elements.min() == elements.max():
        return work
    groups = _groups_of_size(elements)
    size = np.array([elements[group].mean() for group in groups])
    level = np.array([np.median(work[group]) for group in groups])
    first, second = np.triu_indices(len(groups), 1)
    differ = size[second] - size[first] > MIN_LARGER * size[first]
    if not differ.any():
        return work
    slopes = ((level[second] - level[first]) / np.maximum(size[second] - size[first], 1))[differ]
    # A few steps that evaluate as well, with much more input, say little.
    counts = np.array([len(group) for group in groups])
    slope = max(_weighted_median(slopes, np.minimum(counts[first], counts[second])[differ]), 0.0)
    usual_size = max(float(np.quantile(elements, USUAL_QUANTILE)), 1.0)
    usual = float(np.quantile(work, USUAL_QUANTILE))
    ratio = elements / usual_size
    least, most = usual * (np.minimum(ratio, 1.0) - 1), usual * (np.maximum(ratio, 1.0) ** 2 - 1)
    return np.asarray(work - np.clip(slope * (elements - usual_size), least, most))


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])


def _groups_of_size(elements: np.ndarray) -> list[np.ndarray]:
    """Steps by the size of their input, those of one size together, at most MAX_GROUPS."""
    order = np.argsort(elements, kind="stable")
    bounds = np.flatnonzero(np.diff(elements[order])) + 1
    groups = np.split(order, bounds)
    if len(groups) <= MAX_GROUPS:
        return groups
    return [group for group in np.array_split(order, MAX_GROUPS) if len(group)]


def _spread(work: Matrix, noise: Matrix) -> float:
    """What a rank varies by from step to step by chance, as a standard deviation.

    Either around what it usually is beside the others, or among its own quicker steps, which ranks that are slow in turn
    have, too; the smaller one, since each takes something else for chance.
    """
    ranks = len(work)
    beside = NORMAL * float(np.median(np.abs(noise))) * (ranks / (ranks - 1)) ** 0.5
    # Of a normal distribution 1.03 deviations lie between these.
    low, high = np.quantile(work, [0.1, 0.4], axis=1)
    own = float(np.median(high - low)) / 1.03
    return float(min(beside, own))


def _typical_peer(work: Matrix, usual: Floats, clear_ns: float, spread: float) -> Floats:
    """What a rank that is not slow works in each step: float[S].

    Where the ranks' usual work clearly differs, the mean of the quick ones; else the median of a step, and the quicker one of
    the two in the middle where these are no more alike: those that are slow in turn do not count.
    """
    low, high = float(usual.min()), float(usual.max())
    # A small usual difference must not hide that the quicker rank is the slow one now and then.
    behind = work - np.sort(work, axis=0)[(len(work) - 1) // 2]
    differ = high - low > max(clear_ns, SMALL_BESIDE * float(np.quantile(behind, 0.98)))
    quick = usual <= (low + 0.5 * (high - low) if differ else high)
    chosen = np.sort(work[quick] - usual[quick][:, None], axis=0) + usual[quick].mean()
    low_middle, high_middle = chosen[(len(chosen) - 1) // 2], chosen[len(chosen) // 2]
    if len(chosen) < 4:  # noqa: PLR2004
        return np.asarray(low_middle)
    return np.asarray(np.where(high_middle - low_middle > SPIKE * spread, low_middle, (low_middle + high_middle) / 2))


def _running_median(values: Matrix) -> Matrix:
    """Median over WINDOW steps around each, fewer at the ends: float[R, S]."""
    half = min(WINDOW, values.shape[1] | 1) // 2
    padded = np.pad(values, ((0, 0), (half, half)), mode="reflect" if values.shape[1] > half else "edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1, axis=1)
    median: Matrix = np.median(windows, axis=2)
    return median
