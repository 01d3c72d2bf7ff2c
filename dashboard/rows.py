"""The rows of the timeline page: every lane of every rank, one row for each depth of nesting.

Spans of a row do not overlap, so that both their starts and their ends are sorted, and a stretch of time is found by two binary
searches.  Built once for a trace; costs a permutation and two sorted columns.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ..timeline.trace import Trace
from ..timeline.vocabulary import Category, LaneKind

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
    """int64[n]: number of the span in the trace's table."""
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
    kinds = [str(kind) for kind in spans["lane_kind"].cat.categories]
    order_of_kind = np.array([_ORDER.index(LaneKind(kind)) for kind in kinds] or [0], dtype=np.int64)
    kind = order_of_kind[spans["lane_kind"].cat.codes.to_numpy()] if len(spans) else np.empty(0, np.int64)
    lane_names = [str(name) for name in spans["lane"].cat.categories]
    alphabetical = np.empty(max(len(lane_names), 1), dtype=np.int64)
    alphabetical[np.argsort(np.array(lane_names, dtype=object), kind="stable")] = np.arange(len(lane_names))
    lane = spans["lane"].cat.codes.to_numpy()
    rank = spans["rank"].to_numpy(dtype=np.int64)
    start = spans["start_ns"].to_numpy()
    end = start + spans["dur_ns"].to_numpy()
    lanes = np.stack((rank, kind, alphabetical[lane]), axis=1) if len(spans) else np.empty((0, 3), np.int64)
    # The lives of tensors are many lanes: those of all ranks come after what ranks are compared by.
    is_tensor = lanes[:, 1] == _ORDER.index(LaneKind.TENSOR)
    most_ranks = int(rank.max()) + 1 if len(rank) else 1
    key = is_tensor * most_ranks + lanes[:, 0]
    key = (key * len(_ORDER) + lanes[:, 1]) * (len(lane_names) + 1) + lanes[:, 2]
    unique, first_of, lane_number = np.unique(key, return_index=True, return_inverse=True)
    depth = _depths(lane_number, start, end, len(unique))
    row_key = lane_number * MOST_DEPTH + depth
    rows, row = np.unique(row_key, return_inverse=True)
    order = np.lexsort((start, row))
    of_lane = first_of[rows // MOST_DEPTH] if len(rows) else np.empty(0, np.int64)
    names = [lane_names[lane[index]] if key % MOST_DEPTH == 0 else "" for key, index in zip(rows, of_lane, strict=True)]
    codes = np.array([CATEGORIES.index(str(name)) for name in spans["category"].cat.categories] or [0], dtype=np.int8)
    return Rows(
        names=tuple(names),
        ranks=rank[of_lane].astype(np.int32),
        first=np.searchsorted(row[order], np.arange(len(rows) + 1)).astype(np.int64),
        span=order,
        start_ns=start[order],
        # What overlaps against the rules of nesting would break the binary search.
        end_ns=_ascending(end[order], row[order]),
        category=codes[spans["category"].cat.codes.to_numpy()[order]] if len(spans) else np.empty(0, np.int8),
        row_of_span=row.astype(np.int32),
    )


def _depths(lane: np.ndarray, start: np.ndarray, end: np.ndarray, lanes: int) -> np.ndarray:
    """How many spans of the same lane are open when each begins."""
    depth = np.zeros(len(lane), dtype=np.int64)
    # Of those that begin together the longest encloses the others.
    order = np.lexsort((-end, start, lane))
    bounds = np.searchsorted(lane[order], np.arange(lanes + 1))
    for number in range(lanes):
        mine = order[bounds[number] : bounds[number + 1]]
        ended = np.searchsorted(np.sort(end[mine]), start[mine], side="right")
        depth[mine] = np.arange(len(mine)) - ended
    # An instantaneous span has ended when it begins.
    return np.clip(depth, 0, MOST_DEPTH - 1)


def _ascending(end: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Ends that never go back within a row."""
    if not len(end):
        return end
    offset = row * np.int64(int(end.max()) + 1)
    ascending: np.ndarray = np.maximum.accumulate(end + offset) - offset
    return ascending
