"""The graph of a run with known sums only: parts of each step of each rank, and no common clock.

Frontier accounting (StageFrontier, 2026): the parts of a step are taken in a fixed order; at each boundary the *frontier* is the
longest time that any rank has needed up to there.  Its increments add up to the step, need no common clock, and name the
rank and the part by which a delay first becomes everybody's.
"""

from typing import Final

import numpy as np

from ...timeline.vocabulary import Category
from .breakdown import EXPOSED, IDLE, PARTS, Breakdown
from .graph import ON_OPERATION, Graph
from .loading import Loading
from .operations import Operations
from .steps import Steps

#: In the order of a step; what a rank waits for comes last.
ORDER: Final = tuple(
    map(
        str,
        (
            Category.DATA,
            Category.H2D,
            Category.FORWARD,
            Category.OTHER,
            Category.BACKWARD,
            Category.OPTIMIZER,
            Category.CHECKPOINT,
        ),
    )
)


def frontier(parts_ns: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Increments of the frontier at the end of each part, and who made them.

    Args:
        parts_ns: own time by part (those of ORDER): [rank, step], ns.

    Returns:
        int64[len(ORDER), step], ns, and the row of the rank furthest along: int64[len(ORDER), step].  The increments of a
        step sum to the longest own time of any rank.
    """
    done = np.cumsum(np.stack([parts_ns[part] for part in ORDER]), axis=0)
    furthest = done.max(axis=1)
    return np.diff(furthest, axis=0, prepend=np.zeros_like(furthest[:1])), done.argmax(axis=1)


def graph_of_parts(steps: Steps, breakdown: Breakdown) -> Graph:
    """Every step as own work of all ranks and one operation, for which all of them wait.

    The operation ends when the step does; what of a step even its slowest rank waits is its duration.
    """
    waiting = [part for part in EXPOSED if part != IDLE or not breakdown.on_device]
    own = {part: values for part, values in breakdown.parts_ns.items() if part not in waiting}
    ranks, count = steps.start_ns.shape
    own_ns = np.sum(list(own.values()), axis=0)
    step_ns = np.rint(breakdown.step_ns.mean(axis=0)).astype(np.int64)
    step_ns = np.maximum(step_ns, own_ns.max(axis=0)) if count else step_ns
    begin = np.concatenate(([0], np.cumsum(step_ns)))
    ends, starts = begin[1:], begin[:-1]
    piece_ns = np.zeros((ranks * count, len(PARTS)))
    for part, values in own.items():
        piece_ns[:, PARTS.index(part)] = values.ravel()
    segment = np.arange(ranks)[:, None] * (count + 1) + np.arange(count)[None, :]
    wait = np.stack([segment[:, step] for step in range(count)]).ravel() if count else np.empty(0, dtype=np.int64)
    arrival = (starts[None, :] + own_ns).T
    made_up = Steps(
        ranks=steps.ranks,
        numbers=steps.numbers,
        start_ns=np.broadcast_to(starts, (ranks, count)),
        end_ns=np.broadcast_to(ends, (ranks, count)),
        excluded=steps.excluded,
        inferred=steps.inferred,
    )
    return Graph(
        steps=made_up,
        piece_rank=np.repeat(np.arange(ranks), count),
        piece_step=np.tile(np.arange(count), ranks),
        piece_start_ns=np.tile(starts, ranks),
        piece_ns=piece_ns,
        segment_start_ns=np.tile(begin, ranks),
        segment_rank=np.repeat(np.arange(ranks), count + 1),
        segment_piece=np.concatenate(
            [[*(row * count + np.arange(count + 1))] for row in range(ranks)] + [[ranks * count]]
        )
        if ranks
        else np.zeros(1, dtype=np.int64),
        wait_segment=wait,
        wait_start_ns=arrival.ravel(),
        wait_end_ns=np.repeat(ends, ranks),
        wait_kind=np.full(ranks * count, ON_OPERATION),
        wait_target=np.repeat(np.arange(count), ranks),
        wait_lag_ns=np.zeros(ranks * count),
        wait_hold_ns=np.zeros(ranks * count),
        operations=_one_a_step(arrival, ends),
        arrival_segment=segment.T,
        arrival_piece=(np.arange(ranks)[:, None] * count + np.arange(count)[None, :] + 1).T,
        loading=_no_loading(),
        end_segment=segment + 1,
        end_piece=np.arange(ranks)[:, None] * count + np.arange(count)[None, :] + 1,
    )


def _one_a_step(arrival: np.ndarray, ends: np.ndarray) -> Operations:
    count = len(ends)
    ready = arrival.max(axis=1) if count else ends
    zeros, unknown = np.zeros(count), np.full(count, -1, dtype=np.int64)
    return Operations(
        kind=[""] * count,
        caller=[""] * count,
        where=[""] * count,
        blocking=unknown,
        process_set=np.zeros(count, dtype=np.int64),
        chain=np.zeros(count, dtype=np.int64),
        seq=np.arange(count),
        nbytes=unknown,
        tensors=unknown,
        arrival_ns=arrival,
        own_start_ns=np.repeat(ready[:, None], arrival.shape[1], axis=1),
        own_end_ns=np.repeat(ends[:, None], arrival.shape[1], axis=1),
        ready_ns=ready,
        last_rank=arrival.argmax(axis=1) if count else ready,
        negotiated_ns=unknown,
        start_ns=ready,
        end_ns=ends,
        copy_ns=zeros,
        known_ns=ready,
        before=np.arange(count) - 1,
        chained=np.zeros(count, dtype=bool),
    )


def _no_loading() -> Loading:
    none, floats = np.empty(0, dtype=np.int64), np.empty(0)
    return Loading(
        rank=none,
        wait_start_ns=none,
        wait_end_ns=none,
        made_ns=none,
        busy_ns=floats,
        same_worker=none,
        freed_by=none,
        ordered_ns=floats,
        fresh=none.astype(np.bool_),
    )
