"""How long steps take: the mean (which is throughput), the median, the tail, and the parts of a step.

A step of the job is the median of its ranks' steps.  Knows nothing of causes.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ...timeline.vocabulary import Category
from .arrays import Integers
from .breakdown import PARTS, Breakdown, typical_parts, typical_parts_of_each
from .steps import Steps
from .words import milliseconds

#: Mean and median tell different stories when the mean is longer by more than this factor.
MAX_MEAN_RATIO: Final = 1.1
#: The slow steps that a sentence counts hold this share of the time beyond the median.
_SLOW_SHARE: Final = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """Durations of the analysed steps, ns; zeros where there are none."""

    durations_ns: Integers
    """int64[step], in order."""
    checkpoint_ns: Integers
    """int64[step]: the longest checkpoint of any rank in each step."""
    median_ns: int
    mean_ns: int
    p95_ns: int
    max_ns: int

    @property
    def count(self) -> int:
        """Analysed steps."""
        return len(self.durations_ns)

    @property
    def steps_per_second(self) -> float:
        """Throughput: what the mean step allows."""
        return 1e9 / self.mean_ns if self.mean_ns else 0.0

    @property
    def is_skewed(self) -> bool:
        """Whether the median hides what the run takes."""
        return self.mean_ns > MAX_MEAN_RATIO * self.median_ns > 0


def step_times(steps: Steps, breakdown: Breakdown) -> StepTimes:
    """The durations of the analysed steps, and their statistics."""
    durations = step_durations(steps)
    checkpoints = breakdown.parts_ns[str(Category.CHECKPOINT)]
    known = len(durations) > 0
    return StepTimes(
        durations_ns=durations,
        checkpoint_ns=checkpoints.max(axis=0) if known else durations,
        median_ns=int(np.median(durations)) if known else 0,
        mean_ns=round(float(durations.mean())) if known else 0,
        p95_ns=int(np.quantile(durations, 0.95)) if known else 0,
        max_ns=int(durations.max()) if known else 0,
    )


def step_durations(steps: Steps) -> Integers:
    """Duration of each analysed step, the median of its ranks: int64[step], ns."""
    if not steps.duration_ns.size:
        return np.empty(0, dtype=np.int64)
    typical: Integers = np.rint(np.median(steps.duration_ns, axis=0)).astype(np.int64)
    return typical


def median_step(breakdown: Breakdown, times: StepTimes) -> dict[str, int]:
    """Parts of the median step, in ns; they sum to it."""
    if not times.count:
        return dict.fromkeys(PARTS, 0)
    return typical_parts(dict(breakdown.parts_ns), times.median_ns)


def median_steps_by_rank(steps: Steps, breakdown: Breakdown) -> dict[int, dict[str, int]]:
    """Parts of the median step of each rank, in ns; they sum to it."""
    if not steps.duration_ns.size:
        return {rank: dict.fromkeys(PARTS, 0) for rank in steps.ranks}
    medians = np.median(steps.duration_ns, axis=1).astype(np.int64)
    return dict(zip(steps.ranks, typical_parts_of_each(dict(breakdown.parts_ns), medians), strict=True))


def mean_step(breakdown: Breakdown, times: StepTimes) -> dict[str, int]:
    """Parts of the mean step, in ns: means over steps and ranks, which sum to `mean_ns` exactly.

    Ranks' steps differ a little, so that the means are scaled to the job's step; the rounding goes to the largest part.
    """
    if not times.count:
        return dict.fromkeys(PARTS, 0)
    means = {part: float(breakdown.parts_ns[part].mean()) for part in PARTS}
    scale = times.mean_ns / max(sum(means.values()), 1.0)
    rounded = {part: round(value * scale) for part, value in means.items()}
    largest = max(rounded, key=rounded.__getitem__)
    rounded[largest] += times.mean_ns - sum(rounded.values())
    return rounded


def describe_skew(times: StepTimes) -> str | None:
    """What the median hides, in a sentence; None if it hides nothing."""
    if not times.is_skewed:
        return None
    longest_first = np.sort(times.durations_ns)[::-1]
    beyond = np.maximum(longest_first - times.median_ns, 0).astype(float)
    slow = int(np.searchsorted(np.cumsum(beyond), _SLOW_SHARE * beyond.sum())) + 1
    # Steps as long as the last one counted belong to it, too.
    slow = int((times.durations_ns >= longest_first[slow - 1]).sum())
    takes = "takes" if slow == 1 else "take"
    return (
        f"half of the steps take up to {milliseconds(times.median_ns)}, but the mean is {milliseconds(times.mean_ns)}: "
        f"{slow} of {times.count} steps {takes} {milliseconds(float(longest_first[slow - 1]))} or more"
    )
