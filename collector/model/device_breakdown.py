"""What a device does at each moment: it computes, communicates, copies, waits for a batch, or none of these.

A kernel hides what runs beside it: communication under a kernel is hidden, a copy under a kernel or under communication costs
nothing.

Our own recorder sees the phases of a step on the stream that computes, and not its kernels; there the stream also waits for
communication, inside of what looks like forward or backward.  Such waits are marked (SYNCHRONIZE on the lane of compute): what
they show of communication and copies is exposed.
"""

from typing import Final

import pandas as pd

from ...timeline.vocabulary import SYNCHRONIZE, Category, LaneKind
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
    on_stream = kind == str(LaneKind.COMPUTE)
    is_wait = on_stream & (spans["name"] == SYNCHRONIZE)
    activities = spans[on_stream & ~is_wait]
    category = activities["category"]
    communication = of_spans(spans[kind == str(LaneKind.COMMUNICATION)])
    copies = of_spans(activities[category == str(Category.H2D)])
    waited = intersect(of_spans(spans[is_wait]), union(communication, copies))
    moments: dict[str, Intervals] = {}
    taken = EMPTY
    for each in _KERNELS_INNER_FIRST:
        covered = subtract(of_spans(activities[category == str(each)]), waited)
        moments[str(each)] = subtract(covered, taken)
        taken = union(taken, covered)
    hidden = intersect(communication, taken)
    moments[str(Category.COLLECTIVE)] = subtract(communication, taken)
    taken = union(taken, communication)
    moments[str(Category.H2D)] = subtract(copies, taken)
    taken = union(taken, copies)
    loading = of_spans(spans[kind == str(LaneKind.DATA)])
    moments[str(Category.DATA)] = union(moments[str(Category.DATA)], subtract(loading, taken))
    return moments, hidden
