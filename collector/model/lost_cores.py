"""Moments in which a profiled rank had no core, found by operators that take a time slice where microseconds are usual.

torch.profiler counts no processor time.  But a training calls the same short operators in each step, and one of them that takes
milliseconds now and then was stopped in the middle: Linux leaves a core to another thread for 3 ms and more.  What such operators
lose is what all of the step loses for so much of its time.
"""

from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.model.trace import Trace
from ...timeline.vocabulary import STARVED_COUNTERS, Category, LaneKind
from .arrays import Floats
from .intervals import Times
from .steps import Steps

_PARTS: Final = (Category.FORWARD, Category.BACKWARD, Category.OPTIMIZER)
#: Longer ones differ by as much for other reasons.
MAX_USUAL_NS: Final = 1_000_000
#: An operator that takes so much longer than usual was stopped, and not held up by a cache or a page.
MIN_LOST_NS: Final = 1_000_000
#: In so many steps an operator has to be seen before it has a usual time.
MIN_SEEN: Final = 5
#: With less of a part seen in short operators it is not known how much of it is lost.
MIN_SEEN_NS: Final = 10_000_000
MIN_SEEN_RATIO: Final = 0.05


def with_lost_cores(trace: Trace, steps: Steps) -> Trace:
    """The trace with counters of how long each part of a step waited for a core; as it was where operators do not tell.

    Nor where other counters tell, nor for operators that a device computes: there they are launched, which can block.
    """
    spans = trace.spans
    is_profile = trace.meta.format == "kineto" and not (spans["lane_kind"] == str(LaneKind.HOST)).any()
    if not is_profile or steps.count < MIN_SEEN or trace.counters["name"].isin(list(STARVED_COUNTERS.values())).any():
        return trace
    operators = _Operators.of(spans)
    tables = []
    for row, rank in enumerate(steps.ranks):
        lost = _lost_by_part(operators.within(steps, row), steps.count)
        if not lost:
            return trace
        for part, lost_ns in lost.items():
            tables.append(
                pd.DataFrame(
                    {
                        "rank": np.int32(rank),
                        "name": STARVED_COUNTERS[part],
                        "ts_ns": steps.end_ns[row],
                        "value": lost_ns,
                    }
                )
            )
    together = pd.concat([trace.counters.astype({"name": object}), *tables], ignore_index=True)
    return replace(trace, counters=together.astype({"name": "category", "rank": "int32"}))


@dataclass(frozen=True, slots=True)
class _Operators:
    """Columns of operators: by themselves, since tables of all columns take longer to divide than all else here."""

    rank: np.ndarray
    lane: np.ndarray
    name: np.ndarray
    part: np.ndarray
    """The position in _PARTS."""
    start_ns: Times
    dur_ns: Times
    step: np.ndarray

    @classmethod
    def of(cls, spans: pd.DataFrame) -> "_Operators":
        """Those of all ranks, in any order, steps unknown."""
        names = [str(name) for name in spans["category"].cat.categories]
        parts = np.array([_PARTS.index(Category(name)) if name in _PARTS else -1 for name in names] or [-1])
        part = parts[spans["category"].cat.codes.to_numpy()]
        at = np.flatnonzero((spans["lane_kind"] == str(LaneKind.COMPUTE)).to_numpy() & (part >= 0))
        return cls(
            spans["rank"].to_numpy()[at],
            spans["lane"].cat.codes.to_numpy()[at],
            spans["name"].cat.codes.to_numpy()[at],
            part[at],
            spans["start_ns"].to_numpy()[at],
            spans["dur_ns"].to_numpy()[at],
            np.zeros(len(at), dtype=np.int64),
        )

    def within(self, steps: Steps, row: int) -> "_Operators":
        """Those of one rank which begin in a step, by lane and start, of those that begin together the longest first."""
        mine = self.rows(np.flatnonzero(self.rank == steps.ranks[row]))
        step = np.searchsorted(steps.start_ns[row], mine.start_ns, side="right") - 1
        inside = (step >= 0) & (mine.start_ns < steps.end_ns[row][np.maximum(step, 0)])
        mine = replace(mine, step=step).rows(np.flatnonzero(inside))
        # Most files have them in that order.
        lane, start, longer = (np.diff(values) for values in (mine.lane, mine.start_ns, mine.dur_ns))
        if ((lane > 0) | ((lane == 0) & ((start > 0) | ((start == 0) & (longer <= 0))))).all():
            return mine
        return mine.rows(np.lexsort((-mine.dur_ns, mine.start_ns, mine.lane)))

    def rows(self, wanted: np.ndarray) -> "_Operators":
        """Some of them."""
        return _Operators(*(getattr(self, field.name)[wanted] for field in fields(self)))


def _lost_by_part(operators: _Operators, steps: int) -> dict[Category, Floats]:
    """What each part of each step of a rank waited for cores: float[step], ns; nothing if too little of them is seen."""
    took, step = operators.dur_ns, operators.step
    above = parents(operators.lane, operators.start_ns, operators.start_ns + took)
    is_inner = above >= 0
    own: Floats = took.astype(np.float64)
    own -= np.bincount(above[is_inner], weights=took[is_inner], minlength=len(took))
    usual = _usual_ns(operators.name, step, own)
    late = own - usual
    lost_ns = np.where(late >= MIN_LOST_NS, late, 0.0)
    lost_by_part: dict[Category, Floats] = {}
    for number, name in enumerate(_PARTS):
        ours = operators.part == number
        short, outer = ours & (usual <= MAX_USUAL_NS), ours & ~is_inner
        seen = np.bincount(step[short], weights=own[short], minlength=steps)
        whole = np.bincount(step[outer], weights=took[outer], minlength=steps)
        if seen.sum() < max(MIN_SEEN_NS, MIN_SEEN_RATIO * whole.sum()):
            continue
        lost = np.bincount(step[short], weights=lost_ns[short], minlength=steps)
        # The rest of the part loses as much for each moment as what is seen of it.
        lost_by_part[name] = lost + float(lost.sum() / seen.sum()) * np.maximum(whole - seen, 0.0)
    return lost_by_part if Category.FORWARD in lost_by_part else {}


def parents(lane: np.ndarray, start: Times, end: Times) -> np.ndarray:
    """For each span of a thread the one that it lies within, -1 for none: int64[span].

    Args:
        lane: numbers of the threads, in order.
        start: sorted within a thread, of those that begin together the longest first.

    >>> parents(np.zeros(4, int), np.array([0, 1, 2, 8]), np.array([7, 5, 3, 9])).tolist()
    [-1, 0, 1, -1]
    """
    above = np.arange(len(start)) - 1
    while True:
        known = np.maximum(above, 0)
        # Whatever lies between a span and the one looked at ends before the span does.
        outside = (above >= 0) & ((end[known] < end) | (lane[known] != lane))
        if not outside.any():
            return above
        above[outside] = above[known[outside]]


def _usual_ns(name: np.ndarray, step: np.ndarray, own_ns: Floats) -> Floats:
    """What each operator takes usually: the median of the k-th of its name in all steps, more in steps in which most take more.

    Infinite for those that too few steps have.
    """
    table = pd.DataFrame({"name": name, "step": step, "own": own_ns}, copy=False)
    position = table.groupby(["name", "step"], sort=False).cumcount().to_numpy()
    alike = table["own"].groupby(name.astype(np.int64) * (int(position.max(initial=0)) + 1) + position, sort=False)
    usual = alike.transform("median").to_numpy(dtype=float)
    usual = np.where(alike.transform("size").to_numpy() >= MIN_SEEN, np.maximum(usual, 1.0), np.inf)
    # Longer sequences make most operators of a step longer; a thread that is stopped, only those that it is in.
    longer = pd.Series(own_ns / usual).groupby(step).quantile(0.75)
    told: Floats = usual * np.maximum(longer.reindex(step).to_numpy(), 1.0)
    return told
