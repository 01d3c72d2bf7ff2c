"""How each rank's recording ended, and who was waiting for whom when it did.

A tensor waits for the ranks that have not asked for it.  A rank asks for a tensor while it has it under way in its own file,
or is seen to by the coordinator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.model.ending import RankEnd
from ...timeline.model.trace import Trace
from ...timeline.vocabulary import STEP, SYNCHRONIZE, Category, LaneKind

#: Errors that say that another rank has failed.
SECONDARY_ERRORS: Final = ("HorovodInternalError", "HostsUpdatedInterrupt", "DistBackendError")
#: Lanes on which a rank's program shows what it is about.
_PROGRAM_LANES: Final = (str(LaneKind.COMPUTE), str(LaneKind.DATA), str(LaneKind.HOST))

_ACTIVITIES: Final = {
    str(Category.DATA): "data loading",
    str(Category.H2D): "a copy to the device",
    str(Category.FORWARD): "forward",
    str(Category.BACKWARD): "backward",
    str(Category.OPTIMIZER): "the optimizer",
    str(Category.CHECKPOINT): "a checkpoint",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEnding:
    """The end of one rank; times in ns of the run clock."""

    rank: int
    how: str
    """`closed` by the program, `failed` with an error, `cut` (no end mark), `unknown` (the format has no mark)."""
    error: str
    last_ns: int
    """End of the last span or tensor."""
    alive_ns: int
    """The last sign of life: counters are recorded also while nothing else happens."""
    last_step: int
    """Number of the last complete step, -1 if there are none."""
    activity: str
    """The last thing the program did, in words; "" if nothing is known."""
    is_inside: bool
    """Whether it was still at it."""
    is_waiting: bool
    """Whether it was waiting for other ranks."""

    @property
    def is_secondary(self) -> bool:
        """Whether it failed because another rank had."""
        return self.error.startswith(SECONDARY_ERRORS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """Tensors that the same ranks had asked for and the same others had not."""

    tensor: str
    """The first of them."""
    count: int
    by: tuple[int, ...]
    missing: tuple[int, ...]
    """Ranks that had not asked; () where it cannot be known."""
    since_ns: int
    all_asked: bool = False
    """Nobody is missing: the operation itself does not come to its end."""


def find_endings(trace: Trace) -> tuple[RankEnding, ...]:
    """The end of each recorded rank of which the format tells."""
    if not trace.meta.ends:  # most formats tell nothing, and millions of spans take a second
        return ()
    spans = _Spans(trace.spans)
    alive, marked = _latest(trace.counters, "ts_ns"), _latest(trace.steps, "step")
    found = []
    for rank in trace.meta.ranks:
        end = trace.meta.ends.get(rank)
        if end is None:
            continue
        rows = spans.rows_of(rank)
        last_ns = int(spans.end_ns[rows].max()) if len(rows) else 0
        last_ns = max([last_ns, *(tensor.submitted_ns for tensor in end.open_tensors)])
        activity, is_inside = _activity(spans, rows, end)
        found.append(
            RankEnding(
                rank=rank,
                how=_how(end),
                error=end.error,
                last_ns=last_ns,
                alive_ns=max(last_ns, alive.get(rank, 0)),
                last_step=marked.get(rank, -1),
                activity=activity,
                is_inside=is_inside,
                is_waiting=_is_waiting(end),
            )
        )
    return tuple(found)


def _latest(table: pd.DataFrame, column: str) -> dict[int, int]:
    """By rank the largest value of a column."""
    return {int(str(rank)): int(value) for rank, value in table.groupby("rank")[column].max().items()}


class _Spans:
    """Spans as arrays: of thousands of ranks tables would take milliseconds each."""

    def __init__(self, table: pd.DataFrame) -> None:
        rank = table["rank"].to_numpy()
        self._order = np.argsort(rank, kind="stable")
        numbers, firsts = np.unique(rank[self._order], return_index=True)
        lasts = np.append(firsts, len(rank))[1:].tolist()
        self._bounds = dict(zip(numbers.tolist(), zip(firsts.tolist(), lasts, strict=True), strict=True))
        self.start_ns = table["start_ns"].to_numpy()
        self.end_ns = self.start_ns + table["dur_ns"].to_numpy()
        lanes = table["lane_kind"].cat
        program = [number for number, lane in enumerate(lanes.categories) if lane in _PROGRAM_LANES]
        self.is_program = np.isin(lanes.codes.to_numpy(), program)
        self._texts = [
            (table[column].cat.categories, table[column].cat.codes.to_numpy()) for column in ("category", "name")
        ]

    def rows_of(self, rank: int) -> np.ndarray:
        """The rows of a rank."""
        first, last = self._bounds.get(rank, (0, 0))
        return self._order[first:last]

    def described(self, row: int) -> tuple[str, str]:
        """Category and name of a span."""
        (categories, category), (names, name) = self._texts
        return str(categories[category[row]]), str(names[name[row]])


def _how(end: RankEnd) -> str:
    if end.is_closed is None:
        return "unknown"
    if not end.is_closed:
        return "cut"
    return "failed" if end.error else "closed"


def _is_waiting(end: RankEnd) -> bool:
    """Blocked until collectives are done, or about one of its own."""
    return any(
        span.name == SYNCHRONIZE or span.category in {Category.COLLECTIVE, Category.NEGOTIATE}
        for span in end.open_spans
    ) or any(not tensor.is_negotiated for tensor in end.open_tensors)


def _activity(spans: _Spans, rows: np.ndarray, end: RankEnd) -> tuple[str, bool]:
    """What the program did last, and whether it was still at it."""
    inner = [span for span in end.open_spans if span.lane in _PROGRAM_LANES and span.name != STEP]
    if inner:
        return _named(inner[-1].category, inner[-1].name), True
    own = rows[spans.is_program[rows]]
    if not len(own):
        return "", False
    # Of those that end together the outermost counts, which begins first.
    last = own[np.lexsort((spans.start_ns[own], -spans.end_ns[own]))[0]]
    return _named(*spans.described(int(last))), False


def _named(category: str, name: str) -> str:
    if name == SYNCHRONIZE:
        return "waiting for its collectives"
    return _ACTIVITIES.get(category, name)


def find_waiting(trace: Trace) -> tuple[Waiting, ...]:
    """Tensors under way that not all ranks had asked for, the longest wait first.

    Ranks of which nothing was recorded are not counted as missing: nobody knows what they asked for, unless ticks tell.
    """
    ends = trace.meta.ends
    asked: dict[str, set[int]] = {}
    since: dict[str, int] = {}
    told: dict[str, bool] = {}
    awaited: dict[str, tuple[int, ...]] = {}
    complete: set[str] = set()
    for rank, end in ends.items():
        for tensor in end.open_tensors:
            if tensor.is_negotiated and not end.is_snapshot:
                continue
            if tensor.is_negotiated:
                complete.add(tensor.name)
            awaited[tensor.name] = tensor.awaited
            asked.setdefault(tensor.name, set()).update({rank} if end.is_closed is not None else tensor.asked_by)
            # A snapshot has said all that it knows of who has not asked.
            told[tensor.name] = end.is_closed is not None or (bool(tensor.asked_by) and not end.is_snapshot)
            since[tensor.name] = min(since.get(tensor.name, tensor.submitted_ns), tensor.submitted_ns)
    groups: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
    for name, by in asked.items():
        missing = awaited[name] or (_missing(trace, ends, by) if told[name] else ())
        groups.setdefault((tuple(sorted(by)), missing), []).append(name)
    found = [
        Waiting(
            tensor=min(names, key=since.__getitem__),
            count=len(names),
            by=by,
            missing=missing,
            since_ns=min(since[name] for name in names),
            all_asked=complete.issuperset(names),
        )
        for (by, missing), names in groups.items()
    ]
    return tuple(sorted(found, key=lambda item: item.since_ns))


def _missing(trace: Trace, ends: Mapping[int, RankEnd], by: set[int]) -> tuple[int, ...]:
    """Ranks that can be known not to have asked."""
    of_one_file = all(end.is_closed is None for end in ends.values())
    members: Sequence[int] = range(trace.meta.size) if of_one_file else trace.meta.ranks
    return tuple(rank for rank in members if rank not in by)
