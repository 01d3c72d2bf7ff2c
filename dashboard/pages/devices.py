"""Counters over the run: devices, processors, memory, network."""

from typing import Any, Final

import numpy as np
import pandas as pd

from ...collector.reports.figures import Figure
from ...collector.reports.figures import layout as figure_layout
from ...timeline.palette import THEMES
from ..components import empty, plot, text
from . import View

#: Points of a line; more than a screen has columns.
MOST_POINTS: Final = 600
MOST_COUNTERS: Final = 40
MOST_RANKS: Final = 16


def layout(view: View) -> Any:
    """The page."""
    counters = view.analysis.trace.counters
    if counters.empty:
        return empty(
            "Devices",
            "This trace has no counters. The runtime records them once a second (HOROVOD_TIMELINE and tl-run).",
        )
    names = sorted(map(str, counters["name"].unique()))
    return [
        plot(_lines(_readable(counters[counters["name"] == name], name), view.theme), f"counter-{number}", _label(name))
        for number, name in enumerate(names[:MOST_COUNTERS])
    ]


def _label(name: str) -> str:
    return text(name.removesuffix("_ns") + ", ms" if name.endswith("_ns") else name)


def _readable(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Times in milliseconds."""
    return table.assign(value=table["value"] / 1e6) if name.endswith("_ns") else table


def _lines(table: pd.DataFrame, theme: str) -> Figure:
    """One line a rank; long runs thinned to the means of neighbouring samples."""
    data = []
    for rank, mine in list(table.groupby("rank"))[:MOST_RANKS]:
        ordered = mine.sort_values("ts_ns", kind="stable")
        at, value = ordered["ts_ns"].to_numpy(dtype=float) / 1e9, ordered["value"].to_numpy(dtype=float)
        if len(at) > MOST_POINTS:
            edges = np.linspace(0, len(at), MOST_POINTS + 1).astype(int)[:-1]
            sizes = np.diff(np.append(edges, len(at)))
            at, value = np.add.reduceat(at, edges) / sizes, np.add.reduceat(value, edges) / sizes
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"rank {rank}",
                "x": np.round(at, 4).tolist(),
                "y": value.tolist(),
                "line": {"width": 1.5},
            }
        )
    return {
        "data": data,
        "layout": figure_layout(
            theme,
            height=240,
            xaxis={"title": {"text": "seconds"}},
            yaxis={"rangemode": "tozero"},
            font={"color": THEMES[theme]["text"]},
        ),
    }
