"""One clock for all ranks of a trace whose files were written by clocks of their own.

Ranks meet in collectives: nobody leaves one before the last has arrived.  So each collective that two ranks share bounds how far
their clocks are apart, from both sides, and all of them together usually bound it to the time that a small collective takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd

from .columns import map_times
from .trace import Clock, RankClock, Trace

#: Kinds that nobody leaves before everybody has come.
MEETINGS: Final = ("allreduce", "allgather", "alltoall", "reducescatter", "barrier")

#: With fewer collectives, or less time from the first to the last, clocks are taken to run equally fast.
_MIN_FOR_DRIFT: Final = 30
_MIN_SPAN_NS: Final = 2_000_000_000
#: Pairs of collectives that a slope is taken from.
_MAX_PAIRS: Final = 400

#: Clocks of computers do not differ by more; a steeper slope comes from something else.
_MAX_DRIFT: Final = 1e-3

_TIMES: Final = {
    "spans": ("start_ns",),
    "collectives": ("submitted_ns", "negotiated_ns", "start_ns"),
    "tensors": ("submitted_ns", "negotiated_ns", "start_ns", "end_ns"),
    "arrivals": ("arrival_ns",),
    "steps": ("start_ns", "end_ns"),
    "counters": ("ts_ns",),
    "messages": ("start_ns", "submitted_ns"),
    "launches": ("start_ns", "launched_ns"),
}

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class _Meetings:
    """The collectives of one rank."""

    keys: pd.MultiIndex
    arrived: Array
    left: Array


def compare(arrived: Array, left: Array, other_arrived: Array, other_left: Array) -> RankClock | None:
    """What to add to a rank's clock to get another's, from the collectives that both were in.

    Of a collective, `left >= other_arrived` and `other_left >= arrived` on a common clock, so that the offset lies between the
    largest `other_arrived - left` and the smallest `other_left - arrived`.  Within that it is the median difference of leaving,
    since all ranks leave at about the same time.

    Args:
        arrived: when the rank began each collective, ns, on its own clock.
        left: when it ended it.
        other_arrived: the same of the other rank, on the other's clock.
        other_left: as well.

    Returns:
        The offset, for times t of the rank as `offset_ns + drift * t`; None if the bounds contradict each other: these were not
        the same collectives, or the clocks jumped.
    """
    if not len(left):
        return None
    for drift in _possible_drifts(left, other_left):
        lower = float(np.max(other_arrived - left - drift * left))
        upper = float(np.min(other_left - arrived - drift * arrived))
        if lower <= upper:
            middle = float(np.median(other_left - left - drift * left))
            offset = min(max(middle, lower), upper)
            return RankClock(
                offset_ns=round(offset),
                drift=drift,
                uncertainty_ns=int(np.ceil(max(upper - offset, offset - lower))) + 1,
            )
    return None


def _possible_drifts(left: Array, other_left: Array) -> list[float]:
    """How much faster the other clock runs: not at all, or by the median slope between collectives far apart (Theil and Sen)."""
    if len(left) < _MIN_FOR_DRIFT or left.max() - left.min() < _MIN_SPAN_NS:
        return [0.0]
    order = np.argsort(left, kind="stable")
    left, difference = left[order].astype(np.float64), (other_left - left)[order].astype(np.float64)
    half = len(left) // 2
    chosen = np.linspace(0, half - 1, min(half, _MAX_PAIRS)).astype(np.int64)
    apart = left[chosen + half] - left[chosen]
    slopes = (difference[chosen + half] - difference[chosen])[apart > 0] / apart[apart > 0]
    slope = float(np.median(slopes)) if len(slopes) else 0.0
    return [slope, 0.0] if abs(slope) < _MAX_DRIFT else [0.0]


def find_clocks(trace: Trace) -> tuple[dict[int, RankClock], tuple[int, ...]]:
    """The clocks of the ranks against the first one's, and the ranks that cannot be compared with it.

    A rank that shares no collective with the first is compared with one that does; the uncertainties add up.
    """
    meetings = _meetings(trace)
    ranks = trace.meta.ranks
    clocks = {ranks[0]: RankClock(offset_ns=0, drift=0.0, uncertainty_ns=0)}
    left = list(ranks[1:])
    while left:
        progress = False
        for rank in list(left):
            for other in sorted(clocks):
                found = _compare_ranks(meetings.get(rank), meetings.get(other))
                if found is not None:
                    base = clocks[other]
                    clocks[rank] = RankClock(
                        # Drifts are tiny, so that drifts of drifts are nothing.
                        offset_ns=found.offset_ns + base.offset_ns,
                        drift=found.drift + base.drift,
                        uncertainty_ns=found.uncertainty_ns + base.uncertainty_ns,
                    )
                    left.remove(rank)
                    progress = True
                    break
        if not progress:
            break
    return clocks, tuple(left)


def _meetings(trace: Trace) -> dict[int, _Meetings]:
    table = trace.collectives
    table = table[table["kind"].isin(MEETINGS)]
    found = {}
    for rank, rows in table.groupby("rank", observed=True):
        keys = pd.MultiIndex.from_arrays([rows["process_set"], rows["seq"], rows["kind"].astype("str")])
        unique = ~keys.duplicated()
        arrived = rows["start_ns"].to_numpy()[unique]
        found[int(str(rank))] = _Meetings(keys[unique], arrived, arrived + rows["dur_ns"].to_numpy()[unique])
    return found


def _compare_ranks(mine: _Meetings | None, other: _Meetings | None) -> RankClock | None:
    if mine is None or other is None:
        return None
    position = other.keys.get_indexer(mine.keys)
    both = position >= 0
    theirs = position[both]
    return compare(mine.arrived[both], mine.left[both], other.arrived[theirs], other.left[theirs])


def align(trace: Trace) -> Trace:
    """A trace whose ranks have clocks of their own, on the first rank's clock.

    Where ranks cannot be compared, the trace stays as it is and a note says so: a wrong alignment would be worse.
    """
    if trace.meta.clock.method != "none" or len(trace.meta.ranks) < 2:  # noqa: PLR2004  one rank has one clock
        return trace
    clocks, unknown = find_clocks(trace)
    if unknown:
        named = ", ".join(map(str, unknown[:10])) + (", …" if len(unknown) > 10 else "")  # noqa: PLR2004
        who = f"rank {named} shares" if len(unknown) == 1 else f"ranks {named} share"
        note = (
            f"the clocks of the ranks are not aligned: {who} no collectives with the others that fit together; "
            "compare times within a rank only"
        )
        return replace(trace, meta=replace(trace.meta, notes=(*trace.meta.notes, note)))
    frames: dict[str, Any] = {name: _moved(getattr(trace, name), columns, clocks) for name, columns in _TIMES.items()}
    first_ns = min(
        (int(frames[name][columns[0]].min()) for name, columns in _TIMES.items() if len(frames[name])), default=0
    )
    for name, columns in _TIMES.items():
        for column in columns:
            values = frames[name][column].to_numpy()
            known = getattr(trace, name)[column].to_numpy() >= 0
            frames[name][column] = np.where(known, values - first_ns, values)
    clock = Clock(
        method="collectives",
        uncertainty_ns=max(clock.uncertainty_ns for clock in clocks.values()),
        ranks=clocks,
    )
    epoch = trace.meta.epoch_unix_ns
    meta = replace(trace.meta, clock=clock, epoch_unix_ns=epoch + first_ns if epoch else 0)
    return replace(trace, meta=meta, **frames)


def _moved(table: pd.DataFrame, columns: Sequence[str], clocks: dict[int, RankClock]) -> pd.DataFrame:
    """A table on the common clock."""
    table = table.copy(deep=False)
    ranks = table["rank"].to_numpy()
    size = max(clocks) + 1
    offset, drift = np.zeros(size), np.zeros(size)
    for rank, clock in clocks.items():
        offset[rank], drift[rank] = clock.offset_ns, clock.drift

    def changed(times: Array) -> Array:
        moved: Array = times + np.rint(offset[ranks] + drift[ranks] * times).astype(np.int64)
        return moved

    map_times(table, tuple(columns), slice(None), changed)
    return table
