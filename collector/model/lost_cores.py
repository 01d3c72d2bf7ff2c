"""Moments in which a profiled rank had no core, found by operators that take a time slice where microseconds are usual.

torch.profiler counts no processor time.  But a training calls the same short operators in each step, and one of them that takes
milliseconds now and then was stopped in the middle: Linux leaves a core to another thread for 3 ms and more.  What such operators
lose is what all of the step loses for so much of its time.
"""

from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.model.trace import Trace
from ...timeline.vocabulary import STARVED_COUNTERS, Category, LaneKind
from .arrays import Floats, Matrix
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
    mine = spans[(spans["lane_kind"] == str(LaneKind.COMPUTE)) & spans["category"].isin(list(map(str, _PARTS)))]
    tables = []
    for row, rank in enumerate(steps.ranks):
        lost = _lost_by_part(mine[mine["rank"] == rank], steps, row)
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
    return replace(trace, counters=together.astype({"name": "category", "rank": "int32"}), cache_key=None)


def _lost_by_part(spans: pd.DataFrame, steps: Steps, row: int) -> dict[Category, Floats]:
    """What each part of each step of a rank waited for cores: float[step], ns; nothing if too little of them is seen."""
    begins, ends = steps.start_ns[row], steps.end_ns[row]
    step = np.searchsorted(begins, spans["start_ns"].to_numpy(), side="right") - 1
    inside = (step >= 0) & (spans["start_ns"].to_numpy() < ends[np.maximum(step, 0)])
    spans, step = spans[inside], step[inside]
    order = np.lexsort((-spans["dur_ns"].to_numpy(), spans["start_ns"].to_numpy(), spans["lane"].cat.codes.to_numpy()))
    spans, step = spans.iloc[order], step[order]
    lane = spans["lane"].cat.codes.to_numpy()
    start, took = spans["start_ns"].to_numpy(), spans["dur_ns"].to_numpy()
    above = parents(lane, start, start + took)
    own = took - np.bincount(above[above >= 0], weights=took[above >= 0], minlength=len(took))
    usual = _usual_ns(spans["name"].cat.codes.to_numpy(), step, own)
    part = spans["category"].astype(str).to_numpy()
    lost_by_part: dict[Category, Floats] = {}
    for name in _PARTS:
        ours = part == str(name)
        short = ours & (usual <= MAX_USUAL_NS)
        late = own[short] - usual[short]
        lost = np.where(late >= MIN_LOST_NS, late, 0.0)
        seen = np.bincount(step[short], weights=own[short], minlength=steps.count)
        whole = np.bincount(step[ours], weights=np.where(above < 0, took, 0)[ours], minlength=steps.count)
        if seen.sum() < max(MIN_SEEN_NS, MIN_SEEN_RATIO * whole.sum()):
            continue
        in_short = np.bincount(step[short], weights=lost, minlength=steps.count)
        # The rest of the part loses as much for each moment as what is seen of it.
        lost_by_part[name] = in_short + float(lost.sum() / seen.sum()) * np.maximum(whole - seen, 0.0)
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


def _usual_ns(name: np.ndarray, step: np.ndarray, own_ns: np.ndarray) -> Matrix:
    """What each operator takes usually: the median of the k-th of its name in all steps, more in steps in which most take more.

    Infinite for those that too few steps have.
    """
    table = pd.DataFrame({"name": name, "step": step, "own": own_ns})
    table["position"] = table.groupby(["name", "step"]).cumcount()
    alike = table.groupby(["name", "position"])["own"]
    usual = alike.transform("median").to_numpy(dtype=float)
    usual = np.where(alike.transform("size").to_numpy() >= MIN_SEEN, np.maximum(usual, 1.0), np.inf)
    # Longer sequences make most operators of a step longer; a thread that is stopped, only those that it is in.
    longer = pd.Series(own_ns / usual).groupby(step).transform(lambda ratio: ratio.quantile(0.75)).to_numpy()
    told: Matrix = usual * np.maximum(longer, 1.0)
    return told
