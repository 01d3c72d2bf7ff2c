"""What the training thread waits for, moment by moment: a SYNCHRONIZE span in pieces that have the category of the wait.

It is what the breakdown says, so that the timeline cannot show a wait otherwise than the reports count it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...collector.model.breakdown import EXPOSED, Breakdown
from ...collector.model.intervals import EMPTY, Intervals, intersect, of_spans, subtract, union
from ...timeline.model.trace import Trace, by_rank
from ...timeline.vocabulary import SYNCHRONIZE, Category, LaneKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """Spans to be drawn in pieces."""

    spans: np.ndarray
    """int64[k]: numbers of the spans."""
    counts: np.ndarray
    """int64[k]: how many pieces each has, at least one."""
    start_ns: np.ndarray
    """Of the pieces, span by span."""
    end_ns: np.ndarray
    category: np.ndarray
    """int8, of the categories given."""


def find_pieces(trace: Trace, breakdown: Breakdown, categories: Sequence[str]) -> Pieces | None:
    """The waits of all ranks in pieces; None if there are none."""
    names = trace.spans["name"].cat.categories
    if SYNCHRONIZE not in names or not breakdown.moments:
        return None
    is_wait = (trace.spans["name"].cat.codes == names.get_loc(SYNCHRONIZE)).to_numpy()
    numbers = np.flatnonzero(is_wait & (trace.spans["lane_kind"] == str(LaneKind.COMPUTE)).to_numpy())
    waits = trace.spans.iloc[numbers].assign(number=numbers)
    found: list[tuple[np.ndarray, ...]] = []
    tables = by_rank(waits)
    for row, rank in enumerate(breakdown.ranks):
        if rank in tables:
            of_rank = tables[rank].sort_values("start_ns", kind="stable")
            starts = of_rank["start_ns"].to_numpy()
            owners = of_rank["number"].to_numpy(dtype=np.int64)
            found.append(_of_rank(starts, owners, of_spans(of_rank), breakdown.moments[row], categories))
    if not found:
        return None
    owner, start, end, category = (np.concatenate(column) for column in zip(*found, strict=True))
    if not len(owner):
        return None
    first = np.flatnonzero(np.concatenate(([True], owner[1:] != owner[:-1])))
    return Pieces(
        spans=owner[first],
        counts=np.diff(np.append(first, len(owner))),
        start_ns=start,
        end_ns=end,
        category=category.astype(np.int8),
    )


def _of_rank(
    starts: np.ndarray,
    owners: np.ndarray,
    waited: Intervals,
    moments: dict[str, Intervals],
    categories: Sequence[str],
) -> tuple[np.ndarray, ...]:
    """Owner, start, end and category of the pieces of a rank's waits, in order of time."""
    parts, codes = [], []
    for part in EXPOSED:
        mine = intersect(moments.get(part, EMPTY), waited)
        parts.append(mine)
        codes.append(np.full(len(mine), categories.index(part), np.int64))
    rest = subtract(waited, union(*parts))
    parts.append(rest)
    codes.append(np.full(len(rest), categories.index(str(Category.OTHER)), np.int64))
    pieces, code = np.concatenate(parts), np.concatenate(codes)
    # Waits that touch are one set of moments, but several spans: a piece ends with its span.
    position = np.searchsorted(starts, pieces[:, 0], side="right") - 1
    after = np.append(starts[1:], np.iinfo(np.int64).max)
    crossing = pieces[:, 1] > after[position]
    while crossing.any():
        tail = np.stack((after[position[crossing]], pieces[crossing, 1]), axis=1)
        pieces[crossing, 1] = after[position[crossing]]
        pieces, code = np.concatenate((pieces, tail)), np.concatenate((code, code[crossing]))
        position = np.searchsorted(starts, pieces[:, 0], side="right") - 1
        crossing = pieces[:, 1] > after[position]
    order = np.argsort(pieces[:, 0], kind="stable")
    pieces, code, position = pieces[order], code[order], position[order]
    return owners[position], pieces[:, 0], pieces[:, 1], code
