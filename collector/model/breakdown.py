"""Every moment of every step goes to one category: where the step time goes.

The rule, in order, for one rank at one moment:

1. The training thread computes (a span on the lanes of compute or data loading, and not inside SYNCHRONIZE): that span's
   category, the inner one where they nest.
2. It is blocked in SYNCHRONIZE: what communication is doing, the innermost first (`fusion`, `collective`, `queue`,
   `negotiate`).  This is *exposed* communication.  Nothing at all is under way: `idle`.
3. It runs code that nobody recorded (the user's loop, the loss): `other`.

Communication at moments of 1 and 3 is *hidden*.  Where the trace shows a device (a GPU under the PyTorch profiler or Nsight
Systems), the device takes the place of the training thread: its kernels compute; it communicates where no kernel computes; if
it does neither, the step waits for data while the loader is asked for a batch, and else the device is `idle`, since the host
hands out no work.

A trace that does not say what the training thread does (Horovod's) has
only communication and a rest: there rule 2 applies everywhere and the rest is `other`.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.model.step_sums import PARTS as SUMS
from ...timeline.model.step_sums import WAIT
from ...timeline.model.trace import Trace, by_rank
from ...timeline.vocabulary import COMMUNICATION_CATEGORIES, SYNCHRONIZE, Category, LaneKind
from .arrays import Integers, IntMatrix
from .device_breakdown import assign_device
from .intervals import EMPTY, Intervals, intersect, of_spans, subtract, total_within, union
from .steps import Steps

IDLE: Final = "idle"

#: Categories of a breakdown, in the order of a step.
PARTS: Final = (*(str(category) for category in Category), IDLE)

#: Inner before outer: a closure's forward runs inside the optimizer, recomputation inside backward.
_FORWARD: Final = str(Category.FORWARD)
#: What profilers write around the whole forward of a model.
_WHOLE_FORWARD: Final = ("DistributedDataParallel.forward", "FullyShardedDataParallel.forward", "## forward ##")
_COMPUTE_INNER_FIRST: Final = (
    Category.CHECKPOINT,
    Category.H2D,
    Category.DATA,
    Category.FORWARD,
    Category.BACKWARD,
    Category.OPTIMIZER,
)

EXPOSED: Final = (*(str(category) for category in COMMUNICATION_CATEGORIES), IDLE)
"""Parts in which the training thread does no work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """The parts of each step of each rank; they sum to the step, without remainder."""

    ranks: tuple[int, ...]
    parts_ns: dict[str, IntMatrix]
    """By part (PARTS): int64[rank, step]."""
    hidden_ns: IntMatrix
    """Collectives and fusion under computation: int64[rank, step]."""
    knows_compute: bool
    """Whether the trace says what the training thread, or the device, does."""
    knows_communication: bool = True
    """Whether the trace says what communication does while the training thread waits for it."""
    on_device: bool = False
    """Whether the parts are times of a device."""
    moments: tuple[dict[str, Intervals], ...] = ()
    """For each rank the moments of every part but the rest (`other`, or `idle` of a device); none where only sums are known."""
    still: tuple[Intervals, ...] = ()
    """For each rank of a profile on processors the moments inside the model's forward in which no operator runs; part of
    `forward`."""
    hidden: tuple[Intervals, ...] = ()
    """For each rank the moments of collectives and fusion under computation."""

    @property
    def step_ns(self) -> IntMatrix:
        """int64[rank, step]."""
        total: IntMatrix = np.sum(list(self.parts_ns.values()), axis=0)
        return total

    @property
    def own_work_ns(self) -> IntMatrix:
        """Time in which the rank itself works, rather than waits for communication: int64[rank, step]."""
        waiting: IntMatrix = np.sum([self.parts_ns[part] for part in EXPOSED], axis=0)
        return self.step_ns - waiting


def break_down(trace: Trace, steps: Steps) -> Breakdown:
    """Divide the steps of every rank."""
    if not trace.meta.knows_order:
        return _of_sums(trace, steps)
    on_device = bool((trace.spans["lane_kind"] == str(LaneKind.HOST)).any())
    knows_compute = on_device or Category.FORWARD in trace.meta.known_categories
    rest = IDLE if on_device else str(Category.OTHER)
    shape = steps.start_ns.shape
    parts_ns = {part: np.zeros(shape, dtype=np.int64) for part in PARTS}
    hidden_ns = np.zeros(shape, dtype=np.int64)
    all_moments, all_hidden, all_still = [], [], []
    spans_of = by_rank(trace.spans)
    for row, rank in enumerate(steps.ranks):
        spans = spans_of.get(rank, trace.spans.iloc[:0])
        still = EMPTY
        if on_device:
            moments, hidden = assign_device(spans)
        else:
            moments, hidden, still = _assign(spans, knows_compute=knows_compute)
        all_moments.append(moments)
        all_still.append(still)
        all_hidden.append(hidden)
        starts, ends = steps.start_ns[row], steps.end_ns[row]
        for part, intervals in moments.items():
            parts_ns[part][row] = total_within(intervals, starts, ends)
        hidden_ns[row] = total_within(hidden, starts, ends)
        known = np.sum([parts_ns[part][row] for part in PARTS if part != rest], axis=0)
        parts_ns[rest][row] = ends - starts - known
    return Breakdown(
        ranks=steps.ranks,
        parts_ns=parts_ns,
        hidden_ns=hidden_ns,
        knows_compute=knows_compute,
        knows_communication=Category.COLLECTIVE in trace.meta.known_categories,
        on_device=on_device,
        moments=tuple(all_moments),
        still=tuple(all_still),
        hidden=tuple(all_hidden),
    )


def _of_sums(trace: Trace, steps: Steps) -> Breakdown:
    """The parts of steps of which only sums were recorded; nobody knows at which moments they were."""
    sums = trace.sums.drop_duplicates(["rank", "step"])
    wanted = np.isin(sums["rank"].to_numpy(), steps.ranks) & np.isin(sums["step"].to_numpy(), steps.numbers)
    row = np.searchsorted(np.array(steps.ranks), sums["rank"].to_numpy()[wanted])
    column = np.searchsorted(steps.numbers, sums["step"].to_numpy()[wanted])
    shape = steps.start_ns.shape
    parts_ns = {part: np.zeros(shape, dtype=np.int64) for part in PARTS}
    known = np.zeros(shape, dtype=np.int64)
    for part in SUMS:
        # What the training thread waits for while it is blocked is not told.
        values = parts_ns[IDLE if part == WAIT else part]
        values[row, column] = sums[f"{part}_ns"].to_numpy()[wanted]
        known += values
    parts_ns[str(Category.OTHER)] = np.maximum(steps.end_ns - steps.start_ns - known, 0)
    return Breakdown(
        ranks=steps.ranks,
        parts_ns=parts_ns,
        hidden_ns=np.zeros(shape, dtype=np.int64),
        knows_compute=Category.FORWARD in trace.meta.known_categories,
        knows_communication=Category.COLLECTIVE in trace.meta.known_categories,
        still=(EMPTY,) * len(steps.ranks),
        hidden=(EMPTY,) * len(steps.ranks),
    )


def _assign(spans: pd.DataFrame, *, knows_compute: bool) -> tuple[dict[str, Intervals], Intervals, Intervals]:
    """Disjoint sets of moments by part, without `other`; hidden communication; and forward without an operator."""
    kind = spans["lane_kind"]
    training = spans[kind.isin([str(LaneKind.COMPUTE), str(LaneKind.DATA)])]
    blocked = of_spans(training[training["name"] == SYNCHRONIZE])
    moments: dict[str, Intervals] = {}
    taken = blocked
    for category in _COMPUTE_INNER_FIRST:
        covered = of_spans(training[training["category"] == str(category)])
        moments[str(category)] = subtract(covered, taken)
        taken = union(taken, covered)
    communication = spans[kind.isin([str(LaneKind.COMMUNICATION), str(LaneKind.TENSOR)])]
    still = EMPTY
    if knows_compute and not len(blocked):
        # Other profilers do not say when the training thread waits: communication while it computes nothing is waited for.
        blocked = subtract(of_spans(communication), taken)
        # What no operator explains inside the model's forward is Python there, or a wait for something else.
        whole = of_spans(training[training["name"].isin(_WHOLE_FORWARD)])
        still = subtract(subtract(whole, taken), blocked)
        moments[_FORWARD] = union(moments[_FORWARD], still)
    by_category = {
        category: of_spans(communication[communication["category"] == str(category)])
        for category in COMMUNICATION_CATEGORIES
    }
    moving = union(by_category[Category.FUSION], by_category[Category.COLLECTIVE])
    hidden = subtract(moving, blocked) if knows_compute else moving[:0]
    claimed: Intervals = blocked[:0]
    for category in COMMUNICATION_CATEGORIES:
        exposed = by_category[category]
        if knows_compute:
            exposed = intersect(exposed, blocked)
        moments[str(category)] = subtract(exposed, claimed)
        claimed = union(claimed, exposed)
    moments[IDLE] = subtract(blocked, claimed)
    return moments, hidden, still


def typical_parts(
    parts_ns: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]], total_ns: int
) -> dict[str, int]:
    """The parts of a typical step, which sum to `total_ns` exactly.

    They are the means over the steps between the quartiles of duration (over all ranks given), scaled to `total_ns`; the
    rounding goes to the largest part.

    Args:
        parts_ns: by part, int64[..., step].
        total_ns: the median step.
    """
    flat = {part: values.reshape(1, -1) for part, values in parts_ns.items()}
    return typical_parts_of_each(flat, np.array([total_ns]))[0]


def typical_parts_of_each(parts_ns: dict[str, IntMatrix], totals_ns: Integers) -> list[dict[str, int]]:
    """`typical_parts` of each row.

    Args:
        parts_ns: by part, int64[row, step].
        totals_ns: the median step of each row, int64[row].
    """
    durations = sum(parts_ns.values(), np.zeros((1, 1), np.int64))
    if not parts_ns or not durations.shape[1]:
        return [dict.fromkeys(parts_ns, 0) for _ in totals_ns]
    low, high = np.quantile(durations, [0.25, 0.75], axis=1)
    middle = (durations >= low[:, None]) & (durations <= high[:, None])
    middle[~middle.any(axis=1)] = True  # of two steps neither lies between the quartiles
    means = np.stack([np.sum(values, axis=1, where=middle) for values in parts_ns.values()], axis=1)
    means = means / middle.sum(axis=1)[:, None]
    rounded = np.rint(means * (totals_ns / np.maximum(means.sum(axis=1), 1.0))[:, None]).astype(np.int64)
    rows = np.arange(len(rounded))
    rounded[rows, rounded.argmax(axis=1)] += totals_ns - rounded.sum(axis=1)
    return [dict(zip(parts_ns, row, strict=True)) for row in rounded.tolist()]
