"""What a stretch of time holds: time by category, spans by name, communication under computation."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...collector.model.breakdown import IDLE
from ...collector.model.intervals import EMPTY, Intervals, total
from ...timeline.commands import clean
from ...timeline.errors import UsageError
from ...timeline.vocabulary import Category
from .rows import CATEGORIES
from .run import Run
from .table import MOST_NAME, exposed_ns

#: Rows of the table by name.
MOST_GROUPS: Final = 300
#: What spans can be grouped by.
GROUPINGS: Final = ("name", "lane", "rank")
#: More spans are not looked at one by one for how much of them is exposed.
MOST_EXPOSED: Final = 400_000
_EXPOSED: Final = (Category.NEGOTIATE, Category.QUEUE, Category.FUSION, Category.COLLECTIVE)


@dataclass(frozen=True, slots=True)
class Region:
    """A stretch of time on some rows."""

    low_ns: int
    high_ns: int
    rows: tuple[int, ...] | None = None
    """None for all."""


def summarise(run: Run, region: Region, grouping: str) -> dict[str, Any]:
    """The panel of a region.

    Raises:
        UsageError: it is empty, or nothing can be grouped by that.
    """
    if region.high_ns <= region.low_ns:
        raise UsageError("a region ends after it begins")
    if grouping not in GROUPINGS:
        raise UsageError(f"by has to be one of {', '.join(GROUPINGS)}")
    shown = range(len(run.rows)) if region.rows is None else [r for r in region.rows if 0 <= r < len(run.rows)]
    places = [run.rows.within(row, region.low_ns, region.high_ns) for row in shown]
    ranks = sorted({int(run.rows.ranks[row]) for row in shown})
    groups, others = _groups(run, region, _joined(places), grouping)
    return {
        "low_ns": region.low_ns,
        "high_ns": region.high_ns,
        "ranks": len(ranks),
        "categories": _categories(run, region, ranks),
        "communication": _communication(run, region, ranks),
        "groups": groups,
        "other_groups": others,
    }


def _joined(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbouring stretches of the arrays as one."""
    joined: list[tuple[int, int]] = []
    for first, last in places:
        if last <= first:
            continue
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined


def _groups(run: Run, region: Region, places: list[tuple[int, int]], grouping: str) -> tuple[list[dict[str, Any]], int]:
    """Count, sum (within the region), mean and longest of the spans by group, largest sum first; and how many are left out."""
    rows, spans = run.rows, run.trace.spans
    codes, category_of, name_of = run.groups
    count = sum(last - first for first, last in places)
    code = _gather(codes, places, count)
    number = _gather(rows.span, places, count) if grouping != "name" or count <= MOST_EXPOSED else None
    length = _gather(rows.end_ns, places, count, region.high_ns, np.minimum)
    length -= _gather(rows.start_ns, places, count, region.low_ns, np.maximum)
    np.maximum(length, 0, out=length)
    if grouping == "name":
        key, size = code, len(category_of)
    else:
        assert number is not None
        column = spans["rank"].to_numpy() if grouping == "rank" else spans["lane"].cat.codes.to_numpy()
        inner = column[number].astype(np.int64)
        size = (int(inner.max()) + 1) * len(CATEGORIES) if count else 1
        key = inner * len(CATEGORIES) + category_of[code]
    counts = np.bincount(key, minlength=size)
    sums = np.bincount(key, weights=length, minlength=size)
    longest = np.zeros(size, dtype=np.int64)
    np.maximum.at(longest, key, length)
    exposed: np.ndarray = np.zeros(size)
    is_known = number is not None and count <= MOST_EXPOSED
    if is_known:
        exposed = np.bincount(key, weights=np.minimum(exposed_ns(run, number), length), minlength=size)
    occurring = np.flatnonzero(counts)
    order = occurring[np.argsort(-sums[occurring], kind="stable")]

    def words(group: int) -> tuple[str, str]:
        if grouping == "name":
            return str(spans["name"].cat.categories[name_of[group]]), CATEGORIES[category_of[group]]
        inner, category = divmod(group, len(CATEGORIES))
        return f"rank {inner}" if grouping == "rank" else str(spans["lane"].cat.categories[inner]), CATEGORIES[category]

    shown = [
        {
            "name": clean(words(group)[0])[:MOST_NAME],
            "category": words(group)[1],
            "count": int(counts[group]),
            "sum_ns": int(sums[group]),
            "mean_ns": int(sums[group] / counts[group]),
            "longest_ns": int(longest[group]),
            "exposed_ns": int(exposed[group]) if is_known else None,
        }
        for group in order[:MOST_GROUPS].tolist()
    ]
    return shown, max(len(order) - MOST_GROUPS, 0)


def _gather(
    values: np.ndarray, places: list[tuple[int, int]], count: int, bound: int | None = None, limit: Any = None
) -> np.ndarray:
    """The values of some stretches, one after the other, limited to a bound."""
    gathered = np.empty(count, dtype=values.dtype)
    at = 0
    for first, last in places:
        piece = values[first:last]
        if limit is None:
            gathered[at : at + last - first] = piece
        else:
            limit(piece, bound, out=gathered[at : at + last - first])
        at += last - first
    return gathered


def _inside(moments: Intervals, low_ns: int, high_ns: int) -> Intervals:
    """The moments between two times."""
    first = int(np.searchsorted(moments[:, 1], low_ns, side="right"))
    last = int(np.searchsorted(moments[:, 0], high_ns, side="left"))
    return np.clip(moments[first:last], low_ns, high_ns) if last > first else EMPTY


def _categories(run: Run, region: Region, ranks: list[int]) -> list[dict[str, Any]]:
    """How long the ranks spend in each part, as the breakdown divides it; what it does not know is "not recorded"."""
    times = dict.fromkeys(CATEGORIES, 0)
    known = 0
    for rank in ranks:
        for part, moments in run.moments_of(rank).items():
            spent = total(_inside(moments, region.low_ns, region.high_ns))
            times[part] += spent
            known += spent
    whole = len(ranks) * (region.high_ns - region.low_ns)
    rest = str(Category.OTHER) if not run.analysis.facts.breakdown.on_device else IDLE
    times[rest] += max(whole - known, 0)
    return [
        {"category": part, "ns": spent, "ratio": spent / whole if whole else 0.0}
        for part, spent in sorted(times.items(), key=lambda item: -item[1])
        if spent
    ]


def _communication(run: Run, region: Region, ranks: list[int]) -> dict[str, int] | None:
    """Communication of the ranks: exposed, and hidden under computation; None where the trace does not tell."""
    breakdown = run.analysis.facts.breakdown
    if not (breakdown.knows_compute and breakdown.moments and breakdown.knows_communication):
        return None
    exposed = hidden = waiting = 0
    for rank in ranks:
        moments = run.moments_of(rank)
        inside = {
            part: total(_inside(moments.get(str(part), EMPTY), region.low_ns, region.high_ns)) for part in _EXPOSED
        }
        exposed += inside[Category.COLLECTIVE] + inside[Category.FUSION]
        waiting += sum(inside.values())
        hidden += total(_inside(run.hidden_of(rank), region.low_ns, region.high_ns))
    return {"exposed_ns": exposed, "hidden_ns": hidden, "waiting_ns": waiting}
