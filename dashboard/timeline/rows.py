"""The rows of the timeline page: every lane of every rank, one row for each depth of nesting.

Spans of a row do not overlap, so that both their starts and their ends are sorted, and a stretch of time is found by two binary
searches.  Built once for a trace; costs a permutation and a byte a span (times.py).  A wait of the training thread (SYNCHRONIZE)
is drawn as what it waits for: such a span lies in its row in pieces (waits.py), which have times of their own.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from ...collector.model.breakdown import PARTS, Breakdown
from ...timeline.model.trace import Trace
from ...timeline.vocabulary import LaneKind
from .times import Codes, Ends, Starts, Values, search
from .waits import Pieces, find_pieces

#: Deeper nesting is drawn into the last row.
MAX_DEPTH: Final = 12
#: Lanes of a rank from top to bottom.
ORDER: Final = (
    LaneKind.STEPS,
    LaneKind.DATA,
    LaneKind.WORKER,
    LaneKind.WORKER_CODE,
    LaneKind.COMPUTE,
    LaneKind.COMMUNICATION,
    LaneKind.HOST,
    LaneKind.CODE,
    LaneKind.THREAD_CODE,
    LaneKind.OTHER,
    LaneKind.TENSOR,
)
#: So many pairs of a kind and a name of lanes have numbers of two bytes.
_FEW: Final = 2**15
#: The lanes of so many spans are arranged by several threads: who has asked for them does nothing else meanwhile.
_MANY: Final = 1_000_000
_THREADS: Final = 2
#: What a rectangle may show: the categories, and `idle` for a wait in which nothing that was recorded goes on.
CATEGORIES: Final = PARTS


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """All spans of a trace in rows."""

    lanes: tuple[str, ...]
    """Names of lanes."""
    lane: np.ndarray
    """int32[row], of `lanes`."""
    kind: np.ndarray
    """int8[row], of ORDER."""
    depth: np.ndarray
    """int8[row]: 0 for the first row of a lane."""
    ranks: np.ndarray
    """int32[row]."""
    first: np.ndarray
    """int64[row + 1]: where the spans of each row begin in the arrays below."""
    span: np.ndarray
    """int32[n]: number of the span in the trace's table; the same in neighbours that are pieces of one span."""
    start_ns: Values
    """int64[n]."""
    end_ns: Values
    """int64[n], ascending within a row."""
    category: Values
    """int8[n], of CATEGORIES."""
    spans: pd.DataFrame
    """The trace's table."""

    def __len__(self) -> int:
        return len(self.lane)

    @property
    def end_of_all_ns(self) -> int:
        """When the last span ends."""
        return int(self.end_ns[self.first[1:] - 1].max()) if len(self) else 0

    def within(self, row: int, low_ns: int, high_ns: int) -> tuple[int, int]:
        """Where the spans of a row that reach into a stretch of time lie in the arrays: (first, after the last)."""
        first, last = self.all_within(np.array([row]), low_ns, high_ns)
        return int(first[0]), int(last[0])

    def all_within(
        self, rows: np.ndarray, low_ns: np.ndarray | int, high_ns: np.ndarray | int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same of several rows, in one stretch or in one for each: int64[k] each."""
        begin, end = self.first[rows], self.first[rows + 1]
        first = search(self.end_ns, begin, end, low_ns, right=True)
        last = search(self.start_ns, begin, end, high_ns, right=False)
        return np.minimum(first, last), last

    def stretch(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Spans, starts, ends and categories from one position to another: what is drawn, in one go."""
        at = slice(first, last)
        if not (
            isinstance(self.start_ns, Starts) and isinstance(self.end_ns, Ends) and isinstance(self.category, Codes)
        ):
            return self.span[at], self.start_ns[at], self.end_ns[at], self.category[at]
        # Converted once, and not by each of the columns that are gathered.
        spans = self.span[at].astype(np.intp)
        starts = self.start_ns.of(spans)
        return spans, starts, self.end_ns.after(starts, spans, at), self.category.of(spans)

    def row_of_span(self, number: int) -> int:
        """The row that a span lies in."""
        span = self.spans.iloc[number]
        rank, lane, kind, start_ns = int(span["rank"]), span["lane"], span["lane_kind"], int(span["start_ns"])
        of_lane = np.flatnonzero((self.ranks == rank) & (self.kind == ORDER.index(LaneKind(str(kind)))))
        rows = of_lane[[self.lanes[self.lane[row]] == str(lane) for row in of_lane.tolist()]]
        begin, end = self.first[rows], self.first[rows + 1]
        low = search(self.start_ns, begin, end, start_ns, right=False)
        high = search(self.start_ns, begin, end, start_ns, right=True)
        of_row = zip(rows.tolist(), low.tolist(), high.tolist(), strict=True)
        found: int = next(row for row, first, last in of_row if (self.span[first:last] == number).any())
        return found

    def row_of(self, rank: int, kind: LaneKind) -> int:
        """The first row of a rank's lanes of a kind; of the rank if it has none; -1 without rows of the rank."""
        mine = np.flatnonzero(self.ranks == rank)
        if not len(mine):
            return -1
        found = mine[self.kind[mine] == ORDER.index(kind)]
        return int(found[0] if len(found) else mine[0])


def make_rows(trace: Trace, breakdown: Breakdown | None = None) -> Rows:
    """Arrange the spans of a trace.

    Args:
        breakdown: knows what waits are for; None to draw them as they were recorded.
    """
    spans = trace.spans
    start, took = spans["start_ns"].to_numpy(), spans["dur_ns"].to_numpy()
    lanes = _lanes(trace)
    members = np.concatenate([mine for *_, mine in lanes]) if lanes else np.empty(0, dtype=np.int32)
    stops = np.cumsum([len(mine) for *_, mine in lanes]).tolist()

    def arrange(mine: np.ndarray, stop: int) -> tuple[list[int], np.ndarray, np.ndarray]:
        begin = stop - len(mine)
        members[begin:stop], ends, counts = _nested(mine, start[mine], took[mine])
        late, late_ns = _late(ends, counts)
        return counts, late + begin, late_ns

    # Most of it is sorting, for which no thread has to hold the interpreter.
    with ThreadPoolExecutor(_THREADS) as pool:
        work = map if len(spans) < _MANY else pool.map
        arranged = list(work(arrange, [mine for *_, mine in lanes], stops))
    described = [
        (rank, kind, lane, level)
        for (rank, kind, lane, _), (counts, *_) in zip(lanes, arranged, strict=True)
        for level in range(len(counts))
    ]
    first = np.concatenate(([0], np.cumsum([count for counts, *_ in arranged for count in counts], dtype=np.int64)))
    codes = np.array([CATEGORIES.index(str(name)) for name in spans["category"].cat.categories] or [0], dtype=np.int8)
    columns = np.array(described, dtype=np.int64).reshape(len(described), 4)
    none = np.empty(0, dtype=np.int64)
    rows = Rows(
        lanes=tuple(str(name) for name in spans["lane"].cat.categories),
        lane=columns[:, 2].astype(np.int32),
        kind=columns[:, 1].astype(np.int8),
        depth=columns[:, 3].astype(np.int8),
        ranks=columns[:, 0].astype(np.int32),
        first=first.astype(np.int64),
        span=members,
        start_ns=Starts(start, members),
        end_ns=Ends(
            start,
            took,
            members,
            np.concatenate((none, *(late for _, late, _ in arranged))),
            np.concatenate((none, *(late_ns for *_, late_ns in arranged))),
        ),
        category=Codes(codes, spans["category"].cat.codes.to_numpy(), members),
        spans=spans,
    )
    pieces = None if breakdown is None else find_pieces(trace, breakdown, CATEGORIES)
    return rows if pieces is None else _in_pieces(rows, pieces)


def _nested(mine: np.ndarray, starts: np.ndarray, took: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Spans of a lane by depth and start, with their ends; and how many each depth has, of those that have any."""
    ends = starts + took
    if (starts[1:] > starts[:-1]).all():
        if (starts[1:] >= ends[:-1]).all():  # one after the other, as on most lanes
            return mine, ends, [len(mine)]
    else:
        # Of those that begin together the longest encloses the others.
        order = np.lexsort((-ends, starts))
        mine, starts, ends = mine[order], starts[order], ends[order]
    depth = _depths(starts, ends)
    by_depth = np.argsort(depth, kind="stable")
    return mine[by_depth], ends[by_depth], list(filter(None, np.bincount(depth).tolist()))


def _late(ends: np.ndarray, counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Which spans of a lane's rows end before one in front of them, against the rules of nesting, and when that one ends.

    They would break the binary search.
    """
    found, found_ns, at = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)], 0
    for count in counts:
        of_row = ends[at : at + count]
        ascending = np.maximum.accumulate(of_row)
        late = np.flatnonzero(ascending != of_row)
        found.append(late + at)
        found_ns.append(ascending[late])
        at += count
    return np.concatenate(found), np.concatenate(found_ns)


def _in_pieces(rows: Rows, pieces: Pieces) -> Rows:
    """The rows with some spans replaced by their pieces."""
    counts = np.ones(len(rows.spans), dtype=np.int64)
    counts[pieces.spans] = pieces.counts
    repeated = counts[rows.span]
    source = np.repeat(np.arange(len(rows.span)), repeated)
    after = np.concatenate(([0], np.cumsum(repeated)))
    start, end, category = rows.start_ns[source], rows.end_ns[source], rows.category[source]
    # The pieces of the k-th span of `pieces` begin where the row has it.
    place = np.empty(len(rows.spans), dtype=np.int64)
    place[rows.span] = after[:-1]
    begins = np.concatenate(([0], np.cumsum(pieces.counts)[:-1])) if len(pieces.counts) else np.empty(0, np.int64)
    within = np.arange(int(pieces.counts.sum())) - np.repeat(begins, pieces.counts)
    at = np.repeat(place[pieces.spans], pieces.counts) + within
    start[at], end[at], category[at] = pieces.start_ns, pieces.end_ns, pieces.category
    return Rows(
        lanes=rows.lanes,
        lane=rows.lane,
        kind=rows.kind,
        depth=rows.depth,
        ranks=rows.ranks,
        first=after[rows.first],
        span=rows.span[source],
        start_ns=start,
        end_ns=end,
        category=category,
        spans=rows.spans,
    )


def _lanes(trace: Trace) -> list[tuple[int, int, int, np.ndarray]]:
    """The lanes from top to bottom: rank, kind (of ORDER), code of the name, and the numbers of the spans, int32."""
    spans = trace.spans
    kinds = [ORDER.index(LaneKind(str(kind))) for kind in spans["lane_kind"].cat.categories]
    names = [str(name) for name in spans["lane"].cat.categories]
    place = {code: (_naturally(name), code) for code, name in enumerate(names)}
    kind, name = spans["lane_kind"].cat.codes.to_numpy(), spans["lane"].cat.codes.to_numpy()
    found = []
    # Rank by rank, which takes a fraction of the memory of all spans at once.
    for rank, rows in _rows_of_ranks(spans["rank"].to_numpy()):
        code = kind[rows].astype(np.int64) * len(names) + name[rows]
        # Numbers of two bytes are sorted by counting.
        order = np.argsort(code.astype(np.int16) if len(kinds) * len(names) <= _FEW else code, kind="stable")
        code = code[order]
        numbers = (order + rows.start if isinstance(rows, slice) else rows[order]).astype(np.int32)
        bounds = np.concatenate(([0], np.flatnonzero(code[1:] != code[:-1]) + 1, [len(code)]))
        for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            lane_kind, lane = divmod(int(code[low]), len(names))
            found.append((rank, kinds[lane_kind], lane, numbers[low:high]))
    return sorted(found, key=lambda lane: (*lane[:2], place[lane[2]]))


def _rows_of_ranks(rank: np.ndarray) -> list[tuple[int, slice | np.ndarray]]:
    """Each rank, and where its spans are: a slice if they follow each other, as those of readers do."""
    if (rank[1:] >= rank[:-1]).all():
        bounds = np.concatenate(([0], np.flatnonzero(rank[1:] != rank[:-1]) + 1, [len(rank)]))
        pairs = zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        return [(int(rank[low]), slice(low, high)) for low, high in pairs if high > low]
    return [(number, np.flatnonzero(rank == number)) for number in np.unique(rank).tolist()]


def _naturally(name: str) -> tuple[str, int, str]:
    """So that worker 10 comes after worker 9."""
    text = name.rstrip("0123456789")
    number = name[len(text) :]
    return text, int(number) if 0 < len(number) < 12 else -1, name  # noqa: PLR2004


def _depths(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """How many of the spans, which are sorted by start, are open when each begins."""
    ended = np.searchsorted(np.sort(end), start, side="right")
    # An instantaneous span has ended when it begins.
    depth: np.ndarray = np.clip(np.arange(len(start)) - ended, 0, MAX_DEPTH - 1).astype(np.int8)
    return depth
