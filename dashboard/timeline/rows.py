"""The rows of the timeline page: every lane of every rank, one row for each depth of nesting.

Spans of a row do not overlap, so that both their starts and their ends are sorted, and a stretch of time is found by two binary
searches.  Built once for a trace; costs a permutation and two sorted columns.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.trace import Trace
from ...timeline.vocabulary import Category, LaneKind

#: Deeper nesting is drawn into the last row.
MOST_DEPTH: Final = 12
#: Lanes of a rank from top to bottom.
_ORDER: Final = (
    LaneKind.STEPS,
    LaneKind.DATA,
    LaneKind.WORKER,
    LaneKind.COMPUTE,
    LaneKind.COMMUNICATION,
    LaneKind.TENSOR,
    LaneKind.HOST,
    LaneKind.OTHER,
)
CATEGORIES: Final = tuple(str(category) for category in Category)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """All spans of a trace in rows."""

    names: tuple[str, ...]
    """Of each row: the lane; "" for the deeper rows of a lane."""
    ranks: np.ndarray
    """int32[row]."""
    first: np.ndarray
    """int64[row + 1]: where the spans of each row begin in the arrays below."""
    span: np.ndarray
    """int32[n]: number of the span in the trace's table."""
    start_ns: np.ndarray
    end_ns: np.ndarray
    category: np.ndarray
    """int8[n], of CATEGORIES."""
    row_of_span: np.ndarray
    """int32[span]."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def end_of_all_ns(self) -> int:
        """When the last span ends."""
        return int(self.end_ns.max()) if len(self.end_ns) else 0


def make_rows(trace: Trace) -> Rows:
    """Arrange the spans of a trace."""
    spans = trace.spans
    start = spans["start_ns"].to_numpy()
    end = start + spans["dur_ns"].to_numpy()
    lane_of_span, lanes = _lanes(trace)
    # Few lanes, many spans: members in order of lanes first, everything else lane by lane.
    members = np.argsort(lane_of_span, kind="stable")
    bounds = np.searchsorted(lane_of_span[members], np.arange(len(lanes) + 1))
    names: list[str] = []
    ranks: list[int] = []
    first = [0]
    order = np.empty(len(start), dtype=np.int32)
    row_of_span = np.empty(len(start), dtype=np.int32)
    ascending_end = np.empty(len(start), dtype=np.int64)
    for number, (rank, name) in enumerate(lanes):
        begin, stop = int(bounds[number]), int(bounds[number + 1])
        mine = members[begin:stop]
        # Of those that begin together the longest encloses the others.
        mine = mine[np.lexsort((-end[mine], start[mine]))]
        depth = _depths(start[mine], end[mine])
        by_depth = np.argsort(depth, kind="stable")
        mine, depth = mine[by_depth], depth[by_depth]
        order[begin:stop] = mine
        at = begin
        for level, count in enumerate(np.bincount(depth)):
            if not count:
                continue
            names.append(name if level == 0 else "")
            ranks.append(rank)
            row_of_span[mine[at - begin : at - begin + count]] = len(names) - 1
            # What overlaps against the rules of nesting would break the binary search.
            ascending_end[at : at + count] = np.maximum.accumulate(end[order[at : at + count]])
            at += int(count)
            first.append(at)
    codes = np.array([CATEGORIES.index(str(name)) for name in spans["category"].cat.categories] or [0], dtype=np.int8)
    return Rows(
        names=tuple(names),
        ranks=np.array(ranks, dtype=np.int32),
        first=np.array(first, dtype=np.int64),
        span=order,
        start_ns=start[order],
        end_ns=ascending_end,
        category=codes[spans["category"].cat.codes.to_numpy()[order]],
        row_of_span=row_of_span,
    )


def _lanes(trace: Trace) -> tuple[np.ndarray, list[tuple[int, str]]]:
    """The lane of each span, and rank and name of the lanes from top to bottom."""
    spans = trace.spans
    kinds = [_ORDER.index(LaneKind(str(kind))) for kind in spans["lane_kind"].cat.categories]
    names = [str(name) for name in spans["lane"].cat.categories]
    rank = spans["rank"].to_numpy(dtype=np.int64)
    kind, name = spans["lane_kind"].cat.codes.to_numpy(), spans["lane"].cat.codes.to_numpy()
    code, found = pd.factorize((rank * max(len(kinds), 1) + kind) * max(len(names), 1) + name)
    described = [
        (int(key) // len(names) // len(kinds), kinds[int(key) // len(names) % len(kinds)], names[int(key) % len(names)])
        for key in found
    ]
    # The lives of tensors are many lanes: those of all ranks come after what ranks are compared by.
    tensor = _ORDER.index(LaneKind.TENSOR)
    position = sorted(range(len(described)), key=lambda at: (described[at][1] == tensor, described[at]))
    place = np.empty(max(len(position), 1), dtype=np.int32)
    place[position] = np.arange(len(position), dtype=np.int32)
    return place[code], [(described[at][0], described[at][2]) for at in position]


def _depths(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """How many of the spans, which are sorted by start, are open when each begins."""
    ended = np.searchsorted(np.sort(end), start, side="right")
    # An instantaneous span has ended when it begins.
    depth: np.ndarray = np.clip(np.arange(len(start)) - ended, 0, MOST_DEPTH - 1).astype(np.int8)
    return depth
