"""The plots of a report and of the pages, as plain dictionaries in Plotly's format.

Every builder takes an analysis and a theme and returns `{"data": […], "layout": {…}}`; nothing here imports Plotly.  Long runs
are thinned to what a screen can show, so that a figure's size does not grow with the trace.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ...timeline.palette import THEMES
from ..analysis import Analysis
from ..model.breakdown import EXPOSED, PARTS
from ..model.step_times import StepTimes, step_times
from ..model.words import milliseconds
from .palette import COLOURS, label_of

Figure = dict[str, Any]

#: Bars and cells across; more than a screen has no room for.
MAX_COLUMNS: Final = 400
#: Fewer steps are numbers: a line through two points looks like a trend, and so does a histogram of them.
MIN_STEPS: Final = 3
MAX_RANKS: Final = 256
#: Ranks that have a bar of their own, and how many of them are those that have least to do.
MAX_BARS: Final = 16
QUICKEST: Final = 4
#: A histogram reaches at least so far to both sides of the median: steps that are all alike are one bar or two.
MIN_SPREAD: Final = 0.05
MAX_SIZES: Final = 500

#: What a plot of bars needs beside its bars: axis, title, legend.
BARS_PX: Final = 110

#: From nothing to much: readable for colour-blind eyes and in print (five points of Cividis; Nunez, Anderton and Renslow, 2018).
HEAT: Final = ((0.0, "#00204d"), (0.25, "#414d6b"), (0.5, "#7c7b78"), (0.75, "#bcaf6f"), (1.0, "#ffea46"))


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


def as_milliseconds(values: np.ndarray) -> list[float]:
    """Nanoseconds for a plot."""
    rounded: list[float] = np.round(values / 1e6, 4).tolist()
    return rounded


def in_columns(values: np.ndarray, most: int = MAX_COLUMNS) -> tuple[np.ndarray, int]:
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


def steps_axis(analysis: Analysis, width: int) -> list[int]:
    """The numbers of the steps, or of the first of every `width`."""
    numbers: list[int] = analysis.facts.steps.numbers[::width].tolist()
    return numbers


def _rank_bars(theme: str, ranks: int, title: str, **yaxis: Any) -> dict[str, Any]:
    """The layout of one horizontal bar a rank, first rank on top."""
    return layout(
        theme,
        barmode="stack",
        height=BARS_PX + 26 * ranks,
        xaxis={"title": {"text": title}},
        yaxis={"autorange": "reversed", **yaxis},
    )


def whole_steps(count: int) -> dict[str, Any]:
    """An axis of steps: there is none between two of them."""
    return {"tickformat": "d", **({"dtick": 1} if count <= 12 else {})}  # noqa: PLR2004  more have room for their ticks


def anatomy(analysis: Analysis, theme: str = "light") -> Figure:
    """The mean step of every rank, by part: one bar a rank; of many ranks of those that work longest and shortest."""
    facts = analysis.facts
    ranks = list(range(len(facts.ranks)))
    if len(ranks) > MAX_BARS:
        order = np.argsort(-facts.breakdown.own_work_ns.mean(axis=1), kind="stable").tolist()
        ranks = order[: MAX_BARS - QUICKEST] + order[-QUICKEST:]
    names = [f"rank {facts.ranks[row]}" for row in ranks]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": label_of(part, facts.breakdown),
            "y": names,
            "x": as_milliseconds(facts.part(part)[ranks].mean(axis=1)),
            "marker": {"color": COLOURS[part]},
            "hovertemplate": "%{y}: %{x:.2f} ms<extra>%{fullData.name}</extra>",
        }
        for part in _parts_there(analysis)
    ]
    return {
        "data": data,
        "layout": _rank_bars(theme, len(ranks), "ms of a mean step"),
    }


def anatomy_title(analysis: Analysis) -> str:
    """Which ranks `anatomy` shows."""
    count = len(analysis.facts.ranks)
    if count <= MAX_BARS:
        return "The mean step of every rank"
    return f"The mean step of the {MAX_BARS - QUICKEST} slowest and the {QUICKEST} quickest of {count:,} ranks"


def steps_over_time(
    analysis: Analysis, rank: int | None = None, theme: str = "light", shown: tuple[int, int] | None = None
) -> Figure:
    """Every step's parts, over the run: the mean of the ranks, or one rank.

    Args:
        shown: numbers of the first and the last step; None for all.
    """
    facts = analysis.facts
    numbers = facts.steps.numbers
    low, high = (0, len(numbers)) if shown is None else np.searchsorted(numbers, (shown[0], shown[1] + 1)).tolist()
    width = max(1, -(-(high - low) // MAX_COLUMNS))
    data = []
    for part in _parts_there(analysis):
        values = facts.part(part)
        chosen = values.mean(axis=0) if rank is None else values[facts.ranks.index(rank)]
        binned, _ = in_columns(chosen[low:high])
        data.append(
            {
                "type": "bar",
                "name": label_of(part, facts.breakdown),
                "x": numbers[low:high:width].tolist(),
                "y": as_milliseconds(binned),
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
            height=400,
            xaxis={"title": {"text": title}, **whole_steps(high - low)},
            yaxis={"title": {"text": "ms"}},
        ),
    }


def durations(analysis: Analysis, theme: str = "light") -> Figure | None:
    """How long steps take: the distribution of the job's steps, with median and p95; None of fewer than MIN_STEPS."""
    times = step_times(analysis.facts.steps, analysis.facts.breakdown)
    if times.count < MIN_STEPS:
        return None
    usual = times.median_ns / 1e6
    durations_ms = times.durations_ns / 1e6
    reach = (
        min(float(durations_ms.min()), (1 - MIN_SPREAD) * usual),
        max(float(durations_ms.max()), (1 + MIN_SPREAD) * usual),
    )
    counts, edges = np.histogram(durations_ms, bins=min(60, max(10, int(times.count**0.5) * 2)), range=reach)
    high = float(counts.max())
    return {
        "data": [
            {
                "type": "bar",
                "name": "steps",
                "x": np.round((edges[:-1] + edges[1:]) / 2, 4).tolist(),
                "y": counts.tolist(),
                "marker": {"color": COLOURS["backward"]},
                "hovertemplate": "%{x:.1f} ms: %{y} steps<extra></extra>",
            },
            *_marks(times, (0.0, high), theme, upright=True),
        ],
        "layout": layout(
            theme,
            bargap=0.05,
            height=280,
            xaxis={"title": {"text": "ms a step"}},
            yaxis={"title": {"text": "steps"}, "tickformat": "d", "rangemode": "tozero"},
        ),
    }


def strip(analysis: Analysis, theme: str = "light") -> Figure | None:
    """Step time over the run, with median and p95; each point of a long run is the longest of its stretch.

    None of fewer than MIN_STEPS.
    """
    times = step_times(analysis.facts.steps, analysis.facts.breakdown)
    if times.count < MIN_STEPS:
        return None
    numbers = analysis.facts.steps.numbers
    width = max(1, -(-times.count // MAX_COLUMNS))
    starts = np.arange(0, times.count, width)
    longest = np.maximum.reduceat(times.durations_ns, starts)
    ends = float(numbers[0]), float(numbers[-1])
    return {
        "data": [
            {
                "type": "scatter",
                "mode": _mode(times.count),
                "name": "step" if width == 1 else f"longest of {width} steps",
                "x": numbers[starts].tolist(),
                "y": as_milliseconds(longest.astype(float)),
                "line": {"color": COLOURS["backward"]},
            },
            *_marks(times, ends, theme, upright=False),
        ],
        "layout": layout(
            theme,
            height=200,
            xaxis={"title": {"text": "step"}, **whole_steps(times.count)},
            yaxis={"title": {"text": "ms"}, "rangemode": "tozero"},
        ),
    }


def two_strips(runs: Sequence[tuple[str, Analysis]], theme: str = "light") -> Figure:
    """Step time of several runs over each other, aligned by the number of the step; of long runs the longest of each stretch."""
    colours = (THEMES[theme]["soft"], COLOURS["collective"])
    most = max((analysis.facts.steps.count for _, analysis in runs), default=0)
    width = max(1, -(-most // MAX_COLUMNS))
    data = []
    for number, (name, analysis) in enumerate(runs):
        times, numbers = step_times(analysis.facts.steps, analysis.facts.breakdown), analysis.facts.steps.numbers
        stretch = numbers // width
        starts = np.flatnonzero(np.concatenate(([True], stretch[1:] != stretch[:-1]))) if times.count else stretch
        longest = np.maximum.reduceat(times.durations_ns, starts) if times.count else times.durations_ns
        data.append(
            {
                "type": "scatter",
                "mode": _mode(most),
                "name": f"{name}: median {times.median_ns / 1e6:.1f} ms",
                "x": (stretch[starts] * width).tolist(),
                "y": as_milliseconds(longest.astype(float)),
                "line": {"color": colours[number % len(colours)], **({"dash": "dot"} if number == 0 else {})},
            }
        )
    of = "ms" if width == 1 else f"ms, longest of {width}"
    return {
        "data": data,
        "layout": layout(
            theme,
            height=260,
            xaxis={"title": {"text": "step"}, **whole_steps(most)},
            yaxis={"title": {"text": of}, "rangemode": "tozero"},
        ),
    }


def _mode(steps: int) -> str:
    """How a series of so many steps is drawn: two points are no line, and points that touch are nothing but one."""
    if steps < MIN_STEPS:
        return "markers"
    return "lines" if steps > 60 else "lines+markers"  # noqa: PLR2004


def _marks(times: StepTimes, ends: tuple[float, float], theme: str, *, upright: bool) -> list[dict[str, Any]]:
    """Lines at the median and p95."""
    found = []
    for name, value_ns, colour in (
        ("median", times.median_ns, THEMES[theme]["soft"]),
        ("p95", times.p95_ns, THEMES[theme]["bad"]),
    ):
        value = [value_ns / 1e6] * 2
        found.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"{name} {milliseconds(value_ns)}",
                "x": value if upright else list(ends),
                "y": list(ends) if upright else value,
                "line": {"color": colour, "dash": "dot", "width": 1.5},
                "hoverinfo": "skip",
            }
        )
    return found


def heatmap(analysis: Analysis, what: str = "own work", theme: str = "light") -> Figure:
    """Ranks over time: a part of the step, `own work`, or `waits` (exposed communication)."""
    facts = analysis.facts
    if what == "own work":
        values = facts.breakdown.own_work_ns
    elif what == "waits":
        values = np.sum([facts.part(part) for part in EXPOSED], axis=0)
    else:
        values = facts.part(what)
    binned, width = in_columns(values)
    rows = len(facts.ranks)
    return {
        "data": [
            {
                "type": "heatmap",
                "z": [as_milliseconds(row) for row in binned],
                "x": steps_axis(analysis, width),
                "y": [f"rank {rank}" for rank in facts.ranks],
                "colorscale": HEAT,
                "zmin": 0,
                "zmax": max(float(binned.max()) / 1e6, 0.001) if binned.size else 1,
                "colorbar": {"title": {"text": "ms"}},
                "hovertemplate": "%{y}, step %{x}: %{z:.2f} ms<extra></extra>",
            }
        ],
        "layout": layout(
            theme,
            height=int(min(120 + max(18 * rows, 80), 700)),
            xaxis={
                "title": {"text": "step" if width == 1 else f"step (means of {width})"},
                **whole_steps(facts.steps.count),
            },
            yaxis={"autorange": "reversed", "type": "category"},
        ),
    }


def critical_path(analysis: Analysis, theme: str = "light") -> Figure:
    """What holds the steps: shares of the critical path, by rank and part."""
    rows = analysis.critical_path
    ranks = list(dict.fromkeys(rows["rank"].tolist()))[:MAX_RANKS]
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
