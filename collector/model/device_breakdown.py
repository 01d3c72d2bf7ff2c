"""What a device does at each moment: it computes, communicates, copies, waits for a batch, or none of these.

A kernel hides what runs beside it: communication under a kernel is hidden, a copy under a kernel or under communication costs
nothing.
"""

from typing import Final

import pandas as pd

from ...timeline.vocabulary import Category, LaneKind
from .intervals import EMPTY, Intervals, intersect, of_spans, subtract, union

#: Inner before outer: a closure's forward runs inside the optimizer, recomputation inside backward.
_KERNELS_INNER_FIRST: Final = (
    Category.CHECKPOINT,
    Category.DATA,
    Category.FORWARD,
    Category.BACKWARD,
    Category.OPTIMIZER,
    Category.OTHER,
)


def assign_device(spans: pd.DataFrame) -> tuple[dict[str, Intervals], Intervals]:
    """Disjoint sets of moments by part, without `idle`, and hidden communication, of one rank's device."""
    kind = spans["lane_kind"]
    activities = spans[kind == str(LaneKind.COMPUTE)]
    category = activities["category"]
    moments: dict[str, Intervals] = {}
    taken = EMPTY
    for each in _KERNELS_INNER_FIRST:
        covered = of_spans(activities[category == str(each)])
        moments[str(each)] = subtract(covered, taken)
        taken = union(taken, covered)
    communication = of_spans(spans[kind == str(LaneKind.COMMUNICATION)])
    hidden = intersect(communication, taken)
    moments[str(Category.COLLECTIVE)] = subtract(communication, taken)
    taken = union(taken, communication)
    copies = of_spans(activities[category == str(Category.H2D)])
    moments[str(Category.H2D)] = subtract(copies, taken)
    taken = union(taken, copies)
    loading = of_spans(spans[kind == str(LaneKind.DATA)])
    moments[str(Category.DATA)] = union(moments[str(Category.DATA)], subtract(loading, taken))
    return moments, hidden
