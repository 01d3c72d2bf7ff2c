"""How much longer backward takes because the threads that communicate have its cores.

Where a processor moves the bytes, communication that hides behind backward is not free: backward becomes longer by what it is
kept from running.  The runtime records that directly.  In a profile of single operators it shows, too: the same operator takes
longer while a collective runs than while none does.
"""

from typing import Final

import numpy as np
import pandas as pd

from ...timeline.model.trace import Trace
from ...timeline.vocabulary import Category, LaneKind
from .arrays import Matrix
from .breakdown import Breakdown
from .cpu_time import CpuTime
from .intervals import Intervals, of_spans, total_within
from .steps import Steps

_BACKWARD: Final = str(Category.BACKWARD)
_FORWARD: Final = str(Category.FORWARD)
#: Operators of backward that autograd runs one after the other, none inside another.
_NODE: Final = "autograd::engine::evaluate_function"
#: In so many steps an operator has to be seen before it has a best.
_MIN_SEEN: Final = 5


def find_contention(
    trace: Trace, steps: Steps, breakdown: Breakdown, cpu: CpuTime, collectives: pd.DataFrame
) -> Matrix:
    """Time of each step by which backward is longer than it would be alone: float[rank, step], ns; zeros if unknown.

    No more than the time for which communication ran behind computation, nor than bytes moved: a collective that waits for
    another rank takes no core from anybody.  What ranks lack beyond that they take from each other.

    Args:
        collectives: what `split_collectives` returns.
    """
    nothing: Matrix = np.zeros(steps.start_ns.shape)
    if not steps.count or not breakdown.knows_compute or breakdown.on_device:
        return nothing
    backward_ns = breakdown.parts_ns[_BACKWARD]
    if cpu.knows_starved and not cpu.is_estimated:
        longer = _starved_beyond_forward(breakdown, cpu)
    elif (trace.collectives["algorithm"].astype(str).str.lower() == "gloo").any():
        longer = _slower_operators(trace, steps)
    else:
        return nothing
    most = np.minimum(np.minimum(breakdown.hidden_ns, backward_ns), _moving_ns(collectives, steps))
    contention: Matrix = np.clip(longer, 0, most)
    return contention


def _moving_ns(collectives: pd.DataFrame, steps: Steps) -> Matrix:
    """For how long collectives of each step move bytes, waits for other ranks left out."""
    moving: Matrix = np.zeros(steps.start_ns.shape)
    rank = collectives["rank"].to_numpy()
    begin = (collectives["start_ns"] + collectives["wait_ns"]).to_numpy()
    took = collectives["transfer_ns"].to_numpy(dtype=np.float64)
    for row, number in enumerate(steps.ranks):
        mine = rank == number
        step = np.searchsorted(steps.start_ns[row], begin[mine], side="right") - 1
        inside = (step >= 0) & (begin[mine] < steps.end_ns[row][np.maximum(step, 0)])
        moving[row] = np.bincount(step[inside], weights=took[mine][inside], minlength=steps.count)
    return moving


def _starved_beyond_forward(breakdown: Breakdown, cpu: CpuTime) -> Matrix:
    """What backward waits for a core beyond the share that forward does, in which nothing is communicated."""
    forward_ns = np.maximum(breakdown.parts_ns[_FORWARD].sum(axis=1, keepdims=True), 1)
    usual = cpu.starved_ns[_FORWARD].sum(axis=1, keepdims=True) / forward_ns
    beyond: Matrix = cpu.starved_ns[_BACKWARD] - usual * breakdown.parts_ns[_BACKWARD]
    return beyond


def _slower_operators(trace: Trace, steps: Steps) -> Matrix:
    """By how much operators of backward take longer while a collective runs."""
    longer = np.zeros(steps.start_ns.shape)
    names = trace.spans["name"].cat.categories
    nodes = trace.spans[trace.spans["name"].isin(names[names.str.startswith(_NODE)])]
    communication = trace.spans[trace.spans["lane_kind"] == str(LaneKind.COMMUNICATION)]
    for row, rank in enumerate(steps.ranks):
        running = of_spans(communication[communication["rank"] == rank])
        mine = nodes[nodes["rank"] == rank].sort_values("start_ns", kind="stable")
        starts = mine["start_ns"].to_numpy()
        step = np.searchsorted(steps.start_ns[row], starts, side="right") - 1
        inside = (step >= 0) & (starts < steps.end_ns[row][np.maximum(step, 0)])
        if inside.any() and len(running):
            excess = _excess(mine[inside], step[inside], running)
            longer[row] = np.bincount(step[inside], weights=excess, minlength=steps.count)
    return np.maximum(longer, 0.0)


def _excess(nodes: pd.DataFrame, step: np.ndarray, running: Intervals) -> np.ndarray:
    """How much longer each operator takes beside a collective than at its best; 0 for those that run alone.

    An operator is compared with itself in other steps (the k-th of its name), since layers of a kind differ in size.  Its best
    is the tenth percentile; what operators that run alone vary by is no contention and is taken off.
    """
    starts, durations = nodes["start_ns"].to_numpy(), nodes["dur_ns"].to_numpy()
    overlap = total_within(running, starts, starts + durations)
    table = pd.DataFrame({"name": nodes["name"].cat.codes.to_numpy(), "step": step, "took": durations})
    table["position"] = table.groupby(["name", "step"]).cumcount()
    alike = table.groupby(["name", "position"])["took"]
    best = alike.transform(lambda took: np.quantile(took, 0.1)).to_numpy()
    seen = alike.transform("size").to_numpy() >= _MIN_SEEN
    alone, beside = seen & (overlap == 0), seen & (overlap > durations // 2)
    jitter = float((durations[alone] - best[alone]).sum() / max(best[alone].sum(), 1.0))
    excess: np.ndarray = np.where(beside, durations - best * (1 + jitter), 0.0)
    return excess
