"""What a stretch of time holds: time by category, spans by name, communication under computation."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...collector.model.breakdown import IDLE
from ...collector.model.intervals import EMPTY, Intervals, total
from ...timeline.commands.arguments import clean
from ...timeline.errors import UsageError
from ...timeline.vocabulary import Category
from .block_sums import Keys, Stretches
from .rows import CATEGORIES
from .run import Run
from .table import MAX_NAME, exposed_ns

#: Rows of the table by name.
MAX_GROUPS: Final = 300
#: What spans can be grouped by.
GROUPINGS: Final = ("name", "lane", "rank")
#: More spans are not looked at one by one for how much of them is exposed.
MAX_EXPOSED: Final = 400_000
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
    rows = np.array(shown, dtype=np.int64)
    ranks = np.unique(run.rows.ranks[rows]).tolist()
    stretches = Stretches(rows, *run.rows.all_within(rows, region.low_ns, region.high_ns))
    groups, others = _groups(run, region, stretches, grouping)
    return {
        "low_ns": region.low_ns,
        "high_ns": region.high_ns,
        "ranks": len(ranks),
        "categories": _categories(run, region, ranks),
        "communication": _communication(run, region, ranks),
        "groups": groups,
        "other_groups": others,
    }


def _keys(run: Run, grouping: str) -> Keys:
    """By name and category, or by lane or rank and category."""
    _, category_of, _ = run.groups
    if grouping == "name":
        size = len(category_of)
        return Keys(np.zeros(len(run.rows), dtype=np.int64), np.arange(size), size)
    outer = (run.rows.lane if grouping == "lane" else run.rows.ranks).astype(np.int64)
    size = (int(outer.max()) + 1 if len(outer) else 1) * len(CATEGORIES)
    return Keys(outer * len(CATEGORIES), category_of.astype(np.int64), size)


def _groups(run: Run, region: Region, stretches: Stretches, grouping: str) -> tuple[list[dict[str, Any]], int]:
    """Count, sum (within the region), mean and longest of the spans by group, largest sum first; and how many are left out."""
    rows, blocks, keys = run.rows, run.block_sums, _keys(run, grouping)
    _, category_of, name_of = run.groups
    bounds = (region.low_ns, region.high_ns)
    exposed: np.ndarray = np.zeros(keys.size)
    is_known = stretches.count <= MAX_EXPOSED
    if is_known:
        found = blocks.one_by_one(stretches, keys, *bounds)
        waited = exposed_ns(run, rows.span[stretches.positions()])
        waited = np.minimum(waited, blocks.lengths(stretches, *bounds))
        exposed = np.bincount(blocks.keys(stretches, keys), weights=waited, minlength=keys.size)
    else:
        found = blocks.total(stretches, keys, *bounds)
    occurring = np.flatnonzero(found.counts)
    order = occurring[np.argsort(-found.sums_ns[occurring], kind="stable")]

    names = run.trace.spans["name"].cat.categories

    def words(key: int) -> tuple[str, str]:
        if grouping == "name":
            return str(names[name_of[key]]), CATEGORIES[category_of[key]]
        outer, category = divmod(key, len(CATEGORIES))
        return f"rank {outer}" if grouping == "rank" else rows.lanes[outer], CATEGORIES[category]

    shown = [
        {
            "name": clean(words(key)[0])[:MAX_NAME],
            "category": words(key)[1],
            "count": int(found.counts[key]),
            "sum_ns": int(found.sums_ns[key]),
            "mean_ns": int(found.sums_ns[key] / found.counts[key]),
            "longest_ns": int(found.longest_ns[key]),
            "exposed_ns": int(exposed[key]) if is_known else None,
        }
        for key in order[:MAX_GROUPS].tolist()
    ]
    return shown, max(len(order) - MAX_GROUPS, 0)


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
