"""The plots of a report and of the pages, as plain dictionaries in Plotly's format.

Every builder takes an analysis and a theme and returns `{"data": […], "layout": {…}}`; nothing here imports Plotly.  Long runs
are thinned to what a screen can show, so that a figure's size does not grow with the trace.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ...timeline.commands import clean
from ...timeline.palette import THEMES
from ..analysis import Analysis
from ..model.breakdown import EXPOSED, PARTS
from .palette import COLOURS, label_of

Figure = dict[str, Any]

#: How every plot behaves: nothing is sent anywhere, and nobody is invited to.
PLOT_CONFIG: Final = {"displaylogo": False, "showSendToCloud": False, "plotlyServerURL": "", "responsive": True}

#: Bars and cells across; more than a screen has no room for.
MOST_COLUMNS: Final = 400
MOST_RANKS: Final = 256
MOST_SIZES: Final = 500

#: Room for a legend above the plot, and what a plot of bars needs beside its bars.
LEGEND_ABOVE: Final = {"t": 80}
BARS_PX: Final = 150

#: From nothing to much: readable for colour-blind eyes and in print.
HEAT: Final = "Cividis"


def layout(theme: str, **changes: Any) -> dict[str, Any]:
    """What all plots share."""
    colours = THEMES[theme]
    axis = {"gridcolor": colours["line"], "zerolinecolor": colours["line"], "automargin": True}
    base: dict[str, Any] = {
        "font": {"color": colours["text"], "family": "system-ui, sans-serif", "size": 13},
        "paper_bgcolor": colours["paper"],
        "plot_bgcolor": colours["paper"],
        "margin": {"l": 60, "r": 20, "t": 20, "b": 50},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "traceorder": "normal"},
        "hoverlabel": {"namelength": -1},
        "xaxis": dict(axis),
        "yaxis": dict(axis),
    }
    for key, value in changes.items():
        base[key] = {**base[key], **value} if isinstance(base.get(key), dict) and isinstance(value, dict) else value
    return base


def _milliseconds(values: np.ndarray) -> list[float]:
    rounded: list[float] = np.round(values / 1e6, 4).tolist()
    return rounded


def _binned(values: np.ndarray, most: int = MOST_COLUMNS) -> tuple[np.ndarray, int]:
    """Means over as many neighbouring steps as it takes to have at most `most` columns: float[..., column], steps a column."""
    count = values.shape[-1]
    width = max(1, -(-count // most))
    if width == 1:
        return values.astype(float), 1
    whole = count // width * width
    binned = values[..., :whole].reshape(*values.shape[:-1], -1, width).mean(axis=-1)
    if whole < count:
        rest = values[..., whole:].mean(axis=-1, keepdims=True)
        binned = np.concatenate((binned, rest), axis=-1)
    return binned, width


def _parts_there(analysis: Analysis) -> list[str]:
    return [part for part in PARTS if analysis.facts.part(part).any()]


def _steps_axis(analysis: Analysis, width: int) -> list[int]:
    numbers: list[int] = analysis.facts.steps.numbers[::width].tolist()
    return numbers


def _rank_bars(theme: str, ranks: int, title: str, **yaxis: Any) -> dict[str, Any]:
    """The layout of one horizontal bar a rank, first rank on top."""
    return layout(
        theme,
        barmode="stack",
        height=BARS_PX + 26 * ranks,
        margin=LEGEND_ABOVE,
        xaxis={"title": {"text": title}},
        yaxis={"autorange": "reversed", **yaxis},
    )


def anatomy(analysis: Analysis, theme: str = "light") -> Figure:
    """The mean step of every rank, by part: one bar a rank."""
    facts = analysis.facts
    ranks = list(range(len(facts.ranks)))[:MOST_RANKS]
    names = [f"rank {facts.ranks[row]}" for row in ranks]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": label_of(part, facts.breakdown),
            "y": names,
            "x": _milliseconds(facts.part(part)[ranks].mean(axis=1)),
            "marker": {"color": COLOURS[part]},
            "hovertemplate": "%{y}: %{x:.2f} ms<extra>%{fullData.name}</extra>",
        }
        for part in _parts_there(analysis)
    ]
    return {
        "data": data,
        "layout": _rank_bars(theme, len(ranks), "ms of a mean step"),
    }


def steps_over_time(analysis: Analysis, rank: int | None = None, theme: str = "light") -> Figure:
    """Every step's parts, over the run: the mean of the ranks, or one rank."""
    facts = analysis.facts
    width = 1
    data = []
    for part in _parts_there(analysis):
        values = facts.part(part)
        chosen = values.mean(axis=0) if rank is None else values[facts.ranks.index(rank)]
        binned, width = _binned(chosen)
        data.append(
            {
                "type": "bar",
                "name": label_of(part, facts.breakdown),
                "x": _steps_axis(analysis, width),
                "y": _milliseconds(binned),
                "marker": {"color": COLOURS[part], "line": {"width": 0}},
                "hovertemplate": "step %{x}: %{y:.2f} ms<extra>%{fullData.name}</extra>",
            }
        )
    title = "step" if width == 1 else f"step (each bar the mean of {width})"
    return {
        "data": data,
        "layout": layout(
            theme,
            barmode="stack",
            bargap=0,
            height=420,
            margin=LEGEND_ABOVE,
            xaxis={"title": {"text": title}},
            yaxis={"title": {"text": "ms"}},
        ),
    }


def durations(analysis: Analysis, theme: str = "light") -> Figure:
    """How long steps take: the distribution over all ranks' slowest."""
    longest = analysis.facts.steps.duration_ns.max(axis=0) if analysis.facts.steps.count else np.empty(0)
    counts, edges = np.histogram(longest / 1e6, bins=min(60, max(10, int(len(longest) ** 0.5) * 2)))
    return {
        "data": [
            {
                "type": "bar",
                "x": np.round((edges[:-1] + edges[1:]) / 2, 4).tolist(),
                "y": counts.tolist(),
                "marker": {"color": COLOURS["backward"]},
                "hovertemplate": "%{x:.1f} ms: %{y} steps<extra></extra>",
            }
        ],
        "layout": layout(
            theme, bargap=0.05, height=300, xaxis={"title": {"text": "ms a step"}}, yaxis={"title": {"text": "steps"}}
        ),
    }


def heatmap(analysis: Analysis, what: str = "own work", theme: str = "light") -> Figure:
    """Ranks over time: a part of the step, `own work`, or `waits` (exposed communication)."""
    facts = analysis.facts
    if what == "own work":
        values = facts.breakdown.own_work_ns
    elif what == "waits":
        values = np.sum([facts.part(part) for part in EXPOSED], axis=0)
    else:
        values = facts.part(what)
    binned, width = _binned(values)
    rows = len(facts.ranks)
    return {
        "data": [
            {
                "type": "heatmap",
                "z": [_milliseconds(row) for row in binned],
                "x": _steps_axis(analysis, width),
                "y": [f"rank {rank}" for rank in facts.ranks],
                "colorscale": HEAT,
                "colorbar": {"title": {"text": "ms"}},
                "hovertemplate": "%{y}, step %{x}: %{z:.2f} ms<extra></extra>",
            }
        ],
        "layout": layout(
            theme,
            height=int(min(120 + max(18 * rows, 80), 700)),
            xaxis={"title": {"text": "step" if width == 1 else f"step (means of {width})"}},
            yaxis={"autorange": "reversed", "type": "category"},
        ),
    }


def collectives(analysis: Analysis, theme: str = "light") -> Figure:
    """Size against bus bandwidth, one point a kind and size; the dotted line is the best that this run has seen."""
    table = analysis.collectives
    table = table[(table["bytes"] > 0) & (table["busbw_gbps"] > 0)].head(MOST_SIZES)
    data: list[dict[str, Any]] = []
    palette: Sequence[str] = [COLOURS["collective"], COLOURS["backward"], COLOURS["optimizer"], COLOURS["negotiate"]]
    for number, (kind, rows) in enumerate(table.groupby(table["kind"].astype(str), observed=True)):
        seconds = rows["total_ns"].to_numpy(dtype=float)
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": clean(str(kind)),
                "x": rows["bytes"].tolist(),
                "y": np.round(rows["busbw_gbps"].to_numpy(dtype=float), 5).tolist(),
                "customdata": np.stack((rows["count"], rows["median_ns"] / 1e6), axis=1).round(3).tolist(),
                "marker": {
                    "size": np.round(8 + 22 * np.sqrt(seconds / max(seconds.max(), 1.0)), 1).tolist(),
                    "color": palette[number % len(palette)],
                    "opacity": 0.8,
                },
                "hovertemplate": "%{x:.3s}B: %{y:.3f} GB/s, %{customdata[0]} times, median %{customdata[1]:.2f} ms"
                "<extra>%{fullData.name}</extra>",
            }
        )
    shapes = []
    if len(table):
        best = float(table["busbw_gbps"].max())
        line = {"dash": "dot", "width": 1, "color": THEMES[theme]["text"]}
        shapes = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": best, "y1": best, "line": line}]
    return {
        "data": data,
        "layout": layout(
            theme,
            height=340,
            shapes=shapes,
            xaxis={"type": "log", "title": {"text": "bytes"}, **_decades(table["bytes"].to_numpy(dtype=float))},
            yaxis={
                "type": "log",
                "title": {"text": "busbw, GB/s"},
                **_decades(table["busbw_gbps"].to_numpy(dtype=float)),
            },
        ),
    }


def _decades(values: np.ndarray) -> dict[str, Any]:
    """The range of a logarithmic axis: from below the smallest value to above the largest, never a sliver."""
    if not len(values):
        return {}
    return {"range": [float(np.log10(values.min() / 3)), float(np.log10(values.max() * 3))]}


def critical_path(analysis: Analysis, theme: str = "light") -> Figure:
    """What holds the steps: shares of the critical path, by rank and part."""
    rows = analysis.critical_path
    ranks = list(dict.fromkeys(rows["rank"].tolist()))[:MOST_RANKS]
    data = []
    for part in PARTS:
        mine = rows[(rows["part"] == part) & rows["rank"].isin(ranks)]
        if mine.empty:
            continue
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": label_of(part, analysis.facts.breakdown),
                "y": [f"rank {rank}" for rank in mine["rank"]],
                "x": np.round(100 * mine["share"].to_numpy(dtype=float), 2).tolist(),
                "customdata": np.round(100 * mine["steps_ratio"].to_numpy(dtype=float), 1).tolist(),
                "marker": {"color": COLOURS[part]},
                "hovertemplate": "%{y}: %{x:.1f} % of the path, in %{customdata:.0f} % of the steps"
                "<extra>%{fullData.name}</extra>",
            }
        )
    return {
        "data": data,
        "layout": _rank_bars(
            theme,
            len(ranks),
            "% of the critical path",
            categoryorder="array",
            categoryarray=[f"rank {rank}" for rank in ranks],
        ),
    }
