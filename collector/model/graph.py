"""What had to happen before what: the dependencies of a run, as columns.

Every rank has one track of its own work (the training thread, or the compute stream of its device), which *waits* now and then.
The waits that the trace explains are edges of the graph:

- a wait for a collective ends when it has ended on all ranks; the collective begins when its last member has asked for it and
  the negotiation is over, but not before the one in front of it in the same process set has ended;
- a wait for a batch ends when a worker of the loader has made it; the worker begins it when it has made the one before and the
  loop has taken an earlier batch out of the queue;
- a wait for a message ends after its sender has sent it.

A wait that nothing explains stays a part of the rank's own time.  What a format does not show is not in the graph.

Legend of shapes: R ranks, S analysed steps, N pieces (stretches of own time between two marks of one rank), G segments (the
pieces of one rank between two waits), W waits, K collectives and messages.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ...timeline.model.trace import Trace
from .arrays import Floats, Integers, IntMatrix, Mask, Matrix
from .breakdown import EXPOSED, IDLE, PARTS, Breakdown
from .intervals import Intervals, Times, total_within, union
from .loading import Loading, find_loading
from .operations import Operations, find_operations
from .steps import Steps

#: A wait for a collective may end so much before the collective does, by the clocks.
CLOCK_SLACK_NS: Final = 200_000
#: So many operations of a rank at most begin and end within the slack.
MAX_FOLLOWING: Final = 50
#: The end of an operation may be noted so much later than the waiting thread goes on, or half as long as that has waited.
LATE_NS: Final = 2_000_000

ON_OPERATION: Final = 0
ON_BATCH: Final = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    """The dependencies of the analysed steps."""

    steps: Steps
    piece_rank: Times
    """Row of the rank: int64[N], in order of ranks and time."""
    piece_step: Times
    """Column of the step, -1 between sampled steps: int64[N]."""
    piece_start_ns: Times
    piece_ns: Matrix
    """Own time by part (PARTS): float[N, len(PARTS)]."""
    segment_start_ns: Times
    """int64[G]; a rank's segments follow each other."""
    segment_rank: Times
    segment_piece: Times
    """First piece of each segment, and N: int64[G + 1]."""
    wait_segment: Times
    """The segment that ends with the wait; the next one begins after it: int64[W], in an order in which they can be followed."""
    wait_start_ns: Times
    wait_end_ns: Times
    wait_kind: Times
    """ON_OPERATION or ON_BATCH."""
    wait_target: Times
    """Row of `operations`, or of `loading`."""
    wait_lag_ns: Floats
    """From the end of what was waited for to the end of the wait; may be negative (clocks, copies)."""
    wait_hold_ns: Floats
    """How long it takes even if what it waits for is there already."""
    operations: Operations
    arrival_segment: IntMatrix
    """Where each member asked for each operation: segment, -1 for no member: int64[K, R]."""
    arrival_piece: IntMatrix
    """Pieces before that moment, counted over all ranks: int64[K, R]."""
    loading: Loading
    end_segment: IntMatrix
    """Where each step of each rank ends: int64[R, S]."""
    end_piece: IntMatrix

    @property
    def waits_of_rank(self) -> list[Integers]:
        """Rows of the waits of each rank, in order of time."""
        rank = self.segment_rank[self.wait_segment]
        return [np.flatnonzero(rank == row) for row in range(len(self.steps.ranks))]

    @property
    def operation_step(self) -> Integers:
        """The step that was under way on the last rank when each operation ended, by column: int64[K]."""
        found: Integers = np.searchsorted(self.steps.end_ns.max(axis=0), self.operations.end_ns)
        return np.clip(found, 0, max(self.steps.count - 1, 0))


@dataclass(slots=True)
class _Track:
    """One rank's waits and marks while the graph is built; segments and pieces are counted from the rank's first."""

    waits: Intervals
    kind: Times
    target: Times
    lag_ns: Floats
    hold_ns: Floats
    marks: Times
    """Moments that have to be places: arrivals, ends of steps."""
    mark_segment: Times
    mark_piece: Times
    piece_step: Times
    piece_start_ns: Times
    piece_ns: Matrix
    segment_piece: Times


def build_graph(trace: Trace, steps: Steps, breakdown: Breakdown) -> Graph:
    """Find the dependencies between the analysed steps' activities.

    The ranks' clocks have to be aligned; `graph_of_parts` needs no common clock.
    """
    operations = find_operations(trace, steps, on_device=breakdown.on_device)
    loading = find_loading(trace, steps)
    exposed = [part for part in EXPOSED if part != IDLE or not breakdown.on_device]
    tracks = []
    for row in range(len(steps.ranks)):
        moments = breakdown.moments[row]
        blocked = union(*(moments[part] for part in exposed if part in moments))
        tracks.append(_track(row, steps, breakdown, blocked, operations, loading))
    return _join(steps, tracks, operations, loading)


def _track(
    row: int, steps: Steps, breakdown: Breakdown, blocked: Intervals, operations: Operations, loading: Loading
) -> _Track:
    """Waits, pieces and marks of the rank in `row`."""
    begin, end = int(steps.start_ns[row, 0]), int(steps.end_ns[row, -1])
    inside = (blocked[:, 1] > begin) & (blocked[:, 0] < end)
    blocked = np.clip(blocked[inside], begin, end)
    target, lag_ns = _ended_by(blocked, row, operations)
    known = target >= 0
    batches = np.flatnonzero(loading.rank == row)
    held_up = loading.held_up[batches]
    handed_over_ns = loading.wait_end_ns[batches] - loading.made_ns[batches].astype(float)
    usual_ns = float(np.median(handed_over_ns[held_up])) if held_up.any() else 0.0
    took_ns = (loading.wait_end_ns - loading.wait_start_ns)[batches].astype(float)
    quick_ns = float(np.median(took_ns[~held_up])) if (~held_up).any() else usual_ns
    waits = np.concatenate((blocked[known], np.stack((loading.wait_start_ns, loading.wait_end_ns), axis=1)[batches]))
    kind = np.repeat([ON_OPERATION, ON_BATCH], [int(known.sum()), len(batches)])
    targets = np.concatenate((target[known], batches))
    lags = np.concatenate((lag_ns[known], np.where(held_up, handed_over_ns, usual_ns)))
    hold = np.concatenate((np.zeros(int(known.sum())), np.where(held_up, np.minimum(quick_ns, took_ns), took_ns)))
    # By clocks that differ a little a wait may end before the last member has asked: it ends no earlier than that.
    known_ns = operations.known_ns[target[known]]
    waits[: len(known_ns), 1] = np.maximum(waits[: len(known_ns), 1], known_ns)
    order = np.argsort(waits[:, 0], kind="stable")
    waits, kind, targets, lags, hold = waits[order], kind[order], targets[order], lags[order], hold[order]
    waits = _one_after_the_other(waits)
    kept = waits[:, 1] > waits[:, 0]
    waits, kind, targets, lags, hold = waits[kept], kind[kept], targets[kept], lags[kept], hold[kept]
    arrivals = operations.arrival_ns[:, row]
    marks = np.concatenate((np.clip(arrivals, begin, end), steps.end_ns[row]))
    edges = np.unique(np.concatenate((waits.ravel(), marks, steps.start_ns[row], [begin, end])))
    starts, ends = edges[:-1], edges[1:]
    working = ~_is_within(waits, starts)
    starts, ends = starts[working], ends[working]
    segment = np.searchsorted(waits[:, 1], marks, side="right")
    # A mark within a wait stands at its beginning: what was asked for meanwhile was asked by another thread.
    moment = _latest_work(waits, marks)
    step = np.searchsorted(steps.start_ns[row], starts, side="right") - 1
    step = np.where((step >= 0) & (starts < steps.end_ns[row][np.maximum(step, 0)]), step, -1)
    return _Track(
        waits=waits,
        kind=kind,
        target=targets,
        lag_ns=lags,
        hold_ns=hold,
        marks=marks,
        mark_segment=segment,
        mark_piece=np.searchsorted(ends, moment, side="right"),
        piece_step=step,
        piece_start_ns=starts,
        piece_ns=_parts_within(breakdown, row, starts, ends),
        segment_piece=np.concatenate(([0], np.searchsorted(ends, waits[:, 1], side="right"))),
    )


def _one_after_the_other(waits: Intervals) -> Intervals:
    """Waits, in order of their beginnings, each cut to what the ones before leave of it (nothing of some)."""
    if not len(waits):
        return waits
    before = np.concatenate((waits[:1, 0], np.maximum.accumulate(waits[:, 1])[:-1]))
    begin = np.maximum(waits[:, 0], before)
    return np.stack((begin, np.maximum(waits[:, 1], begin)), axis=1)


def _ended_by(blocked: Intervals, row: int, operations: Operations) -> tuple[Times, Floats]:
    """What each wait waited for (-1 if nothing explains it), and the time from that operation's end to the wait's.

    It is the last operation of the rank that ended within the wait.  Another thread notes the end, perhaps a little after
    the wait is over: where none ended within, it is the one under way that ends next.
    """
    own_end, asked = operations.own_end_ns[:, row], operations.asked_ns(row)
    mine = np.flatnonzero(own_end >= 0)
    if not len(mine):
        return np.full(len(blocked), -1), np.zeros(len(blocked))
    order = mine[np.argsort(own_end[mine], kind="stable")]
    ends = own_end[order]
    after = np.searchsorted(ends, blocked[:, 1] + CLOCK_SLACK_NS, side="right")
    # Short operations follow each other within the slack: what was asked for after the wait did not end it.
    for _ in range(MAX_FOLLOWING):
        later = (after > 0) & (asked[order[np.maximum(after - 1, 0)]] > blocked[:, 1])
        if not later.any():
            break
        after = after - later
    last, following = order[np.maximum(after - 1, 0)], order[np.minimum(after, len(order) - 1)]
    # What ended before the wait began did not end it, and neither did what was asked for after it.
    ended = (after > 0) & (own_end[last] > blocked[:, 0]) & (asked[last] <= blocked[:, 1])
    late = np.maximum(LATE_NS, (blocked[:, 1] - blocked[:, 0]) // 2)
    under_way = (after < len(order)) & (asked[following] < blocked[:, 1]) & (own_end[following] < blocked[:, 1] + late)
    target = np.where(ended, last, np.where(under_way, following, -1))
    # Who goes on before the last member has asked (as the root of a broadcast does) waits for nobody.
    target = np.where(operations.known_ns[target] <= blocked[:, 1] + CLOCK_SLACK_NS, target, -1)
    lag = blocked[:, 1] - operations.end_ns[target].astype(float)
    return target, lag


def _is_within(waits: Intervals, moments: Times) -> Mask:
    """Whether each moment falls into a wait."""
    if not len(waits):
        return np.zeros(len(moments), dtype=bool)
    position = np.maximum(np.searchsorted(waits[:, 0], moments, side="right") - 1, 0)
    within: Mask = (moments >= waits[position, 0]) & (moments < waits[position, 1])
    return within


def _latest_work(waits: Intervals, moments: Times) -> Times:
    """Each moment, or the beginning of the wait that it falls into."""
    if not len(waits):
        return moments
    position = np.maximum(np.searchsorted(waits[:, 0], moments, side="right") - 1, 0)
    return np.where(_is_within(waits, moments), waits[position, 0], moments)


def _parts_within(breakdown: Breakdown, row: int, starts: Times, ends: Times) -> Matrix:
    """Own time of each stretch by part: float[n, len(PARTS)]; rows sum to the stretch."""
    rest = IDLE if breakdown.on_device else "other"
    spent = np.zeros((len(starts), len(PARTS)))
    for part, moments in breakdown.moments[row].items():
        if part != rest:
            spent[:, PARTS.index(part)] = total_within(moments, starts, ends)
    spent[:, PARTS.index(rest)] = ends - starts - spent.sum(axis=1)
    return spent


def _join(steps: Steps, tracks: list[_Track], operations: Operations, loading: Loading) -> Graph:
    """One table of all ranks."""
    pieces = np.concatenate(([0], np.cumsum([len(track.piece_step) for track in tracks])))
    segments = np.concatenate(([0], np.cumsum([len(track.waits) + 1 for track in tracks])))
    count, ranks = len(operations.end_ns), range(len(tracks))
    starts = [np.concatenate(([steps.start_ns[row, 0]], tracks[row].waits[:, 1])) for row in ranks]
    wait_segment = np.concatenate([segments[row] + np.arange(len(tracks[row].waits)) for row in ranks])
    waits = np.concatenate([track.waits for track in tracks])
    kind, target = (np.concatenate([getattr(track, name) for track in tracks]) for name in ("kind", "target"))
    known = operations.known_ns[np.minimum(target, count - 1)] if count else target
    order = np.argsort(np.where(kind == ON_OPERATION, np.maximum(waits[:, 1], known), waits[:, 1]), kind="stable")
    marks_segment = np.stack([segments[row] + tracks[row].mark_segment for row in ranks])
    marks_piece = np.stack([pieces[row] + tracks[row].mark_piece for row in ranks])
    member = operations.arrival_ns >= 0
    return Graph(
        steps=steps,
        piece_rank=np.repeat(np.arange(len(tracks)), np.diff(pieces)),
        piece_step=np.concatenate([track.piece_step for track in tracks]),
        piece_start_ns=np.concatenate([track.piece_start_ns for track in tracks]),
        piece_ns=np.concatenate([track.piece_ns for track in tracks]),
        segment_start_ns=np.concatenate(starts),
        segment_rank=np.repeat(np.arange(len(tracks)), np.diff(segments)),
        segment_piece=np.concatenate([*(pieces[row] + tracks[row].segment_piece for row in ranks), pieces[-1:]]),
        wait_segment=wait_segment[order],
        wait_start_ns=waits[order, 0],
        wait_end_ns=waits[order, 1],
        wait_kind=kind[order],
        wait_target=target[order],
        wait_lag_ns=np.concatenate([track.lag_ns for track in tracks])[order],
        wait_hold_ns=np.concatenate([track.hold_ns for track in tracks])[order],
        operations=operations,
        arrival_segment=np.where(member, marks_segment[:, :count].T, -1),
        arrival_piece=np.where(member, marks_piece[:, :count].T, 0),
        loading=loading,
        end_segment=marks_segment[:, count:],
        end_piece=marks_piece[:, count:],
    )
