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
    # By masks: tables of some rows of all columns take longer than what is done with them.
    kind, category = spans["lane_kind"], spans["category"]
    on_stream = (kind == str(LaneKind.COMPUTE)).to_numpy()
    is_wait = on_stream & (spans["name"] == SYNCHRONIZE).to_numpy()
    is_activity = on_stream & ~is_wait
    communication = of_spans(spans, (kind == str(LaneKind.COMMUNICATION)).to_numpy())
    copies = of_spans(spans, is_activity & (category == str(Category.H2D)).to_numpy())
    waited = intersect(of_spans(spans, is_wait), union(communication, copies))
    moments: dict[str, Intervals] = {}
    taken = EMPTY
    for each in _KERNELS_INNER_FIRST:
        covered = subtract(of_spans(spans, is_activity & (category == str(each)).to_numpy()), waited)
        moments[str(each)] = subtract(covered, taken)
        taken = union(taken, covered)
    hidden = intersect(communication, taken)
    moments[str(Category.COLLECTIVE)] = subtract(communication, taken)
    taken = union(taken, communication)
    moments[str(Category.H2D)] = subtract(copies, taken)
    taken = union(taken, copies)
    loading = of_spans(spans, (kind == str(LaneKind.DATA)).to_numpy())
    moments[str(Category.DATA)] = union(moments[str(Category.DATA)], subtract(loading, taken))
    return moments, hidden
