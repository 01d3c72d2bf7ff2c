"""Parts of a trace: some ranks, a stretch of time, some steps, some categories."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ..errors import TraceError
from .trace import TABLES, Trace


def select(
    trace: Trace,
    *,
    ranks: Collection[int] | None = None,
    time_ns: tuple[int, int] | None = None,
    steps: tuple[int, int] | None = None,
    categories: Collection[str] | None = None,
) -> Trace:
    """The part of a trace that all conditions leave.

    Args:
        ranks: these ranks only.
        time_ns: from the first to before the second; what reaches into the stretch is in it, whole.
        steps: from the first to before the second, as the trace numbers them; of each rank the time that its own steps take.
        categories: spans of these categories only.

    Raises:
        TraceError: nothing is left, or the trace has no steps.
    """
    frames: dict[str, pd.DataFrame] = {name: getattr(trace, name) for name in TABLES}
    if ranks is not None:
        unknown = sorted(set(ranks) - set(trace.meta.ranks))
        if unknown:
            raise TraceError(f"there is no rank {unknown[0]} in this trace; it has {_listed(trace.meta.ranks)}")
        frames = {name: table[table["rank"].isin(list(ranks))] for name, table in frames.items()}
    if steps is not None:
        bounds = _bounds_of_steps(frames["steps"], steps)
        frames = {name: _within(name, table, bounds) for name, table in frames.items()}
    if time_ns is not None:
        everywhere = dict.fromkeys(trace.meta.ranks, time_ns)
        frames = {name: _within(name, table, everywhere) for name, table in frames.items()}
    if categories is not None:
        known = list(frames["spans"]["category"].cat.categories)
        wrong = sorted(set(categories) - set(known))
        if wrong:
            raise TraceError(
                f"there is no span of category {wrong[0]} in this trace; it has {', '.join(sorted(known))}"
            )
        frames["spans"] = frames["spans"][frames["spans"]["category"].isin(list(categories))]
    if not len(frames["spans"]):
        raise TraceError("nothing of the trace is selected: select more")
    tables: dict[str, Any] = {name: table.reset_index(drop=True) for name, table in frames.items()}
    left = tuple(rank for rank in trace.meta.ranks if ranks is None or rank in ranks)
    return replace(trace, meta=replace(trace.meta, ranks=left), cache_key=None, **tables)


def _listed(ranks: Collection[int]) -> str:
    return f"ranks {min(ranks)} to {max(ranks)}" if len(ranks) > 8 else f"ranks {', '.join(map(str, ranks))}"  # noqa: PLR2004


def _bounds_of_steps(table: pd.DataFrame, steps: tuple[int, int]) -> dict[int, tuple[int, int]]:
    if not len(table):
        raise TraceError("this trace does not mark its steps: cut it by time")
    chosen = table[(table["step"] >= steps[0]) & (table["step"] < steps[1])]
    if not len(chosen):
        first, last = int(table["step"].min()), int(table["step"].max())
        raise TraceError(f"there is no step from {steps[0]} to {steps[1]} in this trace; it has {first} to {last}")
    return {
        int(str(rank)): (int(rows["start_ns"].min()), int(rows["end_ns"].max()))
        for rank, rows in chosen.groupby("rank", observed=True)
    }


def _within(name: str, table: pd.DataFrame, bounds: dict[int, tuple[int, int]]) -> pd.DataFrame:
    """Rows that reach into their rank's stretch of time."""
    columns = {
        "spans": ("start_ns", "dur_ns"),
        "collectives": ("start_ns", "dur_ns"),
        "tensors": ("submitted_ns", "end_ns"),
        "arrivals": ("arrival_ns", ""),
        "steps": ("start_ns", "end_ns"),
        "sums": ("start_ns", "end_ns"),
        "counters": ("ts_ns", ""),
        "launches": ("start_ns", ""),
        "messages": ("start_ns", "dur_ns"),
    }[name]
    start = table[columns[0]].to_numpy()
    end = start
    if columns[1]:
        end = start + table[columns[1]].to_numpy() if columns[1] == "dur_ns" else table[columns[1]].to_numpy()
    ranks = table["rank"].to_numpy()
    size = max([*bounds, int(ranks.max()) if len(ranks) else 0]) + 1
    first, last = np.full(size, np.iinfo(np.int64).max), np.full(size, np.iinfo(np.int64).min)
    for rank, (begin, finish) in bounds.items():
        first[rank], last[rank] = begin, finish
    # What takes no time counts where it is; the end of a stretch belongs to the next one.
    inside = (start < last[ranks]) & ((end > first[ranks]) | ((end == start) & (start >= first[ranks])))
    left: pd.DataFrame = table.loc[inside]
    return left
