"""Plots of collectives: what they cost by size, who is exposed, and the life of each one in a step."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from ...timeline.commands.arguments import clean
from ...timeline.palette import THEMES
from ...timeline.vocabulary import Category
from ..analysis import Analysis
from ..model.bandwidth import MIN_SIZES, Line
from ..model.exposure import exposed_moments
from ..model.intervals import EMPTY, Intervals
from ..model.words import shorten
from .figures import Figure, layout
from .palette import COLOURS

MAX_SIZES: Final = 500
MAX_BARS: Final = 16
#: Collectives of a step that are drawn, in the order of their starts.
MAX_LIVES: Final = 60
_KINDS: Final = (COLOURS["collective"], COLOURS["backward"], COLOURS["optimizer"], COLOURS["negotiate"])


def costs(analysis: Analysis, lines: Sequence[Line], theme: str = "light") -> Figure | None:
    """Size against the time of moving bytes, with the line of latency and bandwidth; None for fewer than three sizes."""
    table = analysis.collectives
    table = table[(table["bytes"] > 0) & (table["transfer_ns"] > 0)].head(MAX_SIZES)
    if table["bytes"].nunique() < MIN_SIZES:
        return None
    data: list[dict[str, Any]] = []
    for number, (kind, rows) in enumerate(table.groupby(table["kind"].astype(str), observed=True)):
        colour, name = _KINDS[number % len(_KINDS)], clean(str(kind))
        seconds = rows["total_ns"].to_numpy(dtype=float)
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": rows["bytes"].tolist(),
                "y": np.round(rows["transfer_ns"].to_numpy(dtype=float) / 1e6, 5).tolist(),
                "customdata": np.stack((rows["count"], rows["busbw_gbps"]), axis=1).round(4).tolist(),
                "marker": {
                    "size": np.round(8 + 20 * np.sqrt(seconds / max(seconds.max(), 1.0)), 1).tolist(),
                    "color": colour,
                    "opacity": 0.8,
                },
                "hovertemplate": "%{x:.3s}B: %{y:.3g} ms, busbw %{customdata[1]:.3g} GB/s, %{customdata[0]} times"
                "<extra>%{fullData.name}</extra>",
            }
        )
        line = next((line for line in lines if line.kind == str(kind)), None)
        if line is not None:
            ends = np.geomspace(rows["bytes"].min(), rows["bytes"].max(), 40)
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": f"{name}: {line.latency_ns / 1e6:.2g} ms + {line.algbw_gbps:.3g} GB/s",
                    "x": np.round(ends).tolist(),
                    "y": np.round((line.latency_ns + ends / line.algbw_gbps) / 1e6, 5).tolist(),
                    "line": {"color": colour, "dash": "dot"},
                    "hoverinfo": "skip",
                }
            )
    return {
        "data": data,
        "layout": layout(
            theme,
            height=340,
            xaxis={"type": "log", "title": {"text": "bytes"}, **_decades(table["bytes"])},
            yaxis={"type": "log", "title": {"text": "ms of moving bytes"}, **_decades(table["transfer_ns"] / 1e6)},
        ),
    }


def _decades(values: pd.Series) -> dict[str, Any]:
    """The range of a logarithmic axis: from below the smallest value to above the largest, at least a decade."""
    low, high = float(np.log10(values.min() / 2)), float(np.log10(values.max() * 2))
    room = max(1.0 - (high - low), 0.0) / 2
    return {"range": [low - room, high + room], "dtick": 1}


def exposed(table: pd.DataFrame, theme: str = "light") -> Figure:
    """Exposed time by name (exposure.exposed_by), most first; the rest is one bar."""
    shown = table.head(MAX_BARS)
    rest = table.iloc[MAX_BARS:]
    names = [shorten(clean(str(name)), 40) for name in shown["name"]]
    values = shown["exposed_ns"].to_list()
    if len(rest):
        names.append(f"{len(rest)} more")
        values.append(float(rest["exposed_ns"].sum()))
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "name": "exposed",
                "y": _distinct(names),
                "x": np.round(np.array(values) / 1e6, 4).tolist(),
                "marker": {"color": COLOURS["collective"]},
                "hovertemplate": "%{y}: %{x:.2f} ms<extra></extra>",
            }
        ],
        "layout": layout(
            theme,
            height=70 + 24 * len(names),
            xaxis={"title": {"text": "ms exposed, mean of a step and rank"}, "rangemode": "tozero"},
            yaxis={"autorange": "reversed", "type": "category"},
        ),
    }


def _distinct(names: list[str]) -> list[str]:
    """Rows of the same name would be one row."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


def lives(analysis: Analysis, rank: int, step: int, theme: str = "light") -> Figure | None:
    """Ready, negotiated, started and ended, for each collective of a step of a rank, over backward and what is exposed.

    None where the rank has no collectives in that step.
    """
    facts = analysis.facts
    row, column = facts.ranks.index(rank), int(np.flatnonzero(facts.steps.numbers == step)[0])
    begin, end = int(facts.steps.start_ns[row, column]), int(facts.steps.end_ns[row, column])
    table = facts.collectives
    table = table[(table["rank"] == rank) & (table["start_ns"] >= begin) & (table["start_ns"] < end)]
    if table.empty:
        return None
    table = table.sort_values("start_ns", kind="stable").head(MAX_LIVES)
    start = table["start_ns"].to_numpy()
    done = start + table["dur_ns"].to_numpy()
    ready = np.where(table["submitted_ns"] >= 0, np.minimum(table["submitted_ns"], start), start)
    agreed = np.where(table["negotiated_ns"] >= 0, np.clip(table["negotiated_ns"], ready, start), ready)
    names = _distinct(_names(analysis, table))
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names,
            "base": np.round((low - begin) / 1e6, 4).tolist(),
            "x": np.round((high - low) / 1e6, 4).tolist(),
            "width": 0.9,
            "marker": {"color": COLOURS[part]},
            "hovertemplate": "%{y}: %{x:.3f} ms<extra>%{fullData.name}</extra>",
        }
        for name, part, low, high in (
            ("ready, negotiating", "negotiate", ready, agreed),
            ("in the queue", "queue", agreed, start),
            ("moving bytes or waiting for ranks", "collective", start, done),
        )
        if (high > low).any()  # else of nothing there would be a colour in the legend
    ]
    moments = facts.breakdown.moments[row] if row < len(facts.breakdown.moments) else {}
    backward = moments.get(str(Category.BACKWARD), EMPTY)
    shapes = [
        *_bands(backward, begin, end, COLOURS["backward"], 0.16),
        *_bands(exposed_moments(facts, row), begin, end, THEMES[theme]["bad"], 0.16),
    ]
    return {
        "data": data,
        "layout": layout(
            theme,
            barmode="overlay",
            height=120 + 20 * len(names),
            showlegend=True,
            shapes=shapes,
            xaxis={"title": {"text": "ms since the step began"}, "range": [0, (end - begin) / 1e6]},
            yaxis={"autorange": "reversed", "type": "category"},
        ),
    }


def _bands(moments: Intervals, begin: int, end: int, colour: str, opacity: float) -> list[dict[str, Any]]:
    """Stretches behind the bars."""
    return [
        {
            "type": "rect",
            "yref": "paper",
            "layer": "below",
            "y0": 0,
            "y1": 1,
            "x0": (max(low, begin) - begin) / 1e6,
            "x1": (min(high, end) - begin) / 1e6,
            "fillcolor": colour,
            "opacity": opacity,
            "line": {"width": 0},
        }
        for low, high in moments.tolist()
        if high > begin and low < end
    ][:400]


def _names(analysis: Analysis, table: pd.DataFrame) -> list[str]:
    """For each collective its first tensor, and how many more there are."""
    tensors = analysis.trace.tensors
    rank = int(table["rank"].iloc[0])
    mine = tensors[(tensors["rank"] == rank) & tensors["seq"].isin(table["seq"]) & (tensors["seq"] >= 0)]
    first = mine.drop_duplicates(["process_set", "seq"]).set_index(["process_set", "seq"])["name"].to_dict()
    names = []
    for number, row in enumerate(table.to_dict("records"), start=1):
        name = first.get((row["process_set"], row["seq"]))
        more = f" and {int(row['tensors']) - 1} more" if int(row["tensors"]) > 1 else ""
        words = f"{row['kind']} {number}" if name is None else shorten(clean(str(name)), 34)
        names.append(words + (more if name is not None else ""))
    return names
