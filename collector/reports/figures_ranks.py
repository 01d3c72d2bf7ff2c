"""Plots of ranks beside each other: who deviates, who waits for whom, and who holds the steps."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...timeline.commands.arguments import clean
from ...timeline.palette import QUICKER, SLOWER, THEMES
from ..analysis import Analysis
from ..model.breakdown import EXPOSED, PARTS
from ..model.typical import away_from_typical
from .figures import HEAT, MAX_COLUMNS, Figure, as_milliseconds, in_columns, layout, steps_axis, whole_steps
from .palette import COLOURS, label_of
from .summary import Summary

#: More ranks are shown by host, or by blocks of so many.
MAX_ROWS: Final = 64
BLOCK: Final = 16
#: Deviations smaller than this share of the typical step have pale colours, however small all of them are.
MIN_SCALE: Final = 0.1


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks that share a row of a map."""

    name: str
    rows: tuple[int, ...]


def groups_of(analysis: Analysis, chosen: str = "") -> tuple[RankGroup, ...]:
    """The rows of a map: ranks; of many the hosts, or blocks of neighbours; and of a chosen group its ranks."""
    facts = analysis.facts
    every = tuple(RankGroup(f"rank {rank}", (row,)) for row, rank in enumerate(facts.ranks))
    if len(every) <= MAX_ROWS:
        return every
    hosts: dict[str, list[int]] = {}
    for row, rank in enumerate(facts.ranks):
        hosts.setdefault(facts.trace.meta.hosts.get(rank, ""), []).append(row)
    if len(hosts) < 2:  # noqa: PLR2004  of one host nothing is told apart
        hosts = {}
        for row, rank in enumerate(facts.ranks):
            first = rank // BLOCK * BLOCK
            hosts.setdefault(f"ranks {first} to {first + BLOCK - 1}", []).append(row)
    if chosen in hosts:
        return tuple(every[row] for row in hosts[chosen][:256])
    return tuple(RankGroup(clean(name) or "unknown host", tuple(rows)) for name, rows in hosts.items())[:256]


def values_of(analysis: Analysis, what: str) -> np.ndarray:
    """What a map shows: int64[rank, step], ns."""
    facts = analysis.facts
    if what == "own work":
        return facts.breakdown.own_work_ns
    if what == "waits":
        total: np.ndarray = np.sum([facts.part(part) for part in EXPOSED], axis=0)
        return total
    return facts.part(what)


def deviations(analysis: Analysis, what: str, chosen: str = "", theme: str = "light") -> Figure:
    """Every rank's distance from the typical rank (the median of the others) over the run; of a group the slowest rank's.

    Zero is the paper's colour; the scale reaches at least a tenth of the typical step, so that noise stays pale.
    """
    away = away_from_typical(values_of(analysis, what))
    groups = groups_of(analysis, chosen)
    slowest = np.stack([away[list(group.rows)].max(axis=0) for group in groups])
    binned, width = in_columns(slowest)
    typical = float(np.median(analysis.facts.steps.duration_ns))
    scale = max(float(np.quantile(np.abs(binned), 0.995)), MIN_SCALE * typical, 1.0) / 1e6
    paper = THEMES[theme]["paper"].lower()
    return {
        "data": [
            {
                "type": "heatmap",
                "z": [as_milliseconds(row) for row in binned],
                "x": steps_axis(analysis, width),
                "y": [group.name for group in groups],
                "colorscale": [[0.0, QUICKER.lower()], [0.5, paper], [1.0, SLOWER.lower()]],
                "zmin": -scale,
                "zmax": scale,
                "colorbar": {"title": {"text": "ms"}, "thickness": 12},
                "hovertemplate": "%{y}, step %{x}: %{z:+.2f} ms<extra></extra>",
            }
        ],
        "layout": layout(
            theme,
            height=int(min(90 + max(18 * len(groups), 60), 900)),
            xaxis={
                "title": {"text": "step" if width == 1 else f"step (means of {width})"},
                **whole_steps(analysis.facts.steps.count),
            },
            yaxis={"autorange": "reversed", "type": "category"},
        ),
    }


def path_in_time(analysis: Analysis, theme: str = "light") -> Figure | None:
    """The critical path over the run: what each step's time is to blame on; None where it is not known."""
    if analysis.critical_path.empty:
        return None
    facts = analysis.facts
    table = analysis.blame.groupby(["step", "category"])["ns"].sum().unstack(fill_value=0)
    table = table.reindex(facts.steps.numbers, fill_value=0)
    data, width = [], 1
    for part in PARTS:
        if part not in table or not table[part].any():
            continue
        binned, width = in_columns(table[part].to_numpy(dtype=float))
        data.append(
            {
                "type": "bar",
                "name": label_of(part, facts.breakdown),
                "x": steps_axis(analysis, width),
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
            height=300,
            xaxis={"title": {"text": title}, **whole_steps(facts.steps.count)},
            yaxis={"title": {"text": "ms"}},
        ),
    }


def holders(analysis: Analysis, chosen: str = "", theme: str = "light") -> Figure | None:
    """How much of each step lies on which rank, or host: the critical path's way; None where it is not known."""
    if analysis.critical_path.empty or len(analysis.facts.ranks) < 2:  # noqa: PLR2004  of one rank it is all of it
        return None
    facts = analysis.facts
    by_rank = analysis.blame.groupby(["rank", "step"])["ns"].sum().unstack(fill_value=0)
    by_rank = by_rank.reindex(index=list(facts.ranks), columns=facts.steps.numbers, fill_value=0)
    share = by_rank.to_numpy(dtype=float) / np.maximum(by_rank.to_numpy(dtype=float).sum(axis=0), 1.0) * 100
    groups = groups_of(analysis, chosen)
    binned, width = in_columns(np.stack([share[list(group.rows)].sum(axis=0) for group in groups]), MAX_COLUMNS)
    return {
        "data": [
            {
                "type": "heatmap",
                "z": [np.round(row, 1).tolist() for row in binned],
                "x": steps_axis(analysis, width),
                "y": [group.name for group in groups],
                "colorscale": [list(point) for point in HEAT],
                "zmin": 0,
                "zmax": 100,
                "colorbar": {"title": {"text": "%"}, "thickness": 12},
                "hovertemplate": "%{y}, step %{x}: %{z:.0f} % of the step<extra></extra>",
            }
        ],
        "layout": layout(
            theme,
            height=int(min(90 + max(18 * len(groups), 60), 900)),
            xaxis={"title": {"text": "step"}, **whole_steps(facts.steps.count)},
            yaxis={"autorange": "reversed", "type": "category"},
        ),
    }


def waits(summary: Summary, theme: str = "light", most: int = 32) -> Figure | None:
    """Who waits for whom, a row a waiting rank and a column the one waited for; None where nobody is known to wait."""
    if not summary.waits:
        return None
    involved = {row.waiter: 0.0 for row in summary.waits} | {row.culprit: 0.0 for row in summary.waits}
    for row in summary.waits:
        involved[row.waiter] += row.mean_ns
        involved[row.culprit] += row.mean_ns
    ranks = sorted(sorted(involved, key=lambda rank: -involved[rank])[:most])
    place = {rank: number for number, rank in enumerate(ranks)}
    matrix: list[list[float | None]] = [[None if one == other else 0.0 for other in ranks] for one in ranks]
    for row in summary.waits:
        if row.waiter in place and row.culprit in place:
            matrix[place[row.waiter]][place[row.culprit]] = round(row.mean_ns / 1e6, 3)
    names = [f"rank {rank}" for rank in ranks]
    most_ms = max(row.mean_ns for row in summary.waits) / 1e6
    return {
        "data": [
            {
                "type": "heatmap",
                "z": matrix,
                "x": names,
                "y": names,
                "colorscale": [list(point) for point in HEAT],
                "zmin": 0,
                "zmax": max(most_ms, MIN_SCALE * summary.steps.mean_ns / 1e6),
                "colorbar": {"title": {"text": "ms"}, "thickness": 12},
                "hovertemplate": "%{y} waits for %{x}: %{z:.2f} ms a step<extra></extra>",
            }
        ],
        "layout": layout(
            theme,
            height=110 + max(22 * len(ranks), 60),
            xaxis={"title": {"text": "… for whom"}, "type": "category"},
            yaxis={"autorange": "reversed", "type": "category"},
        ),
    }


def waterfall(summary: Summary, theme: str = "light", least: float = 0.005) -> Figure | None:
    """From a typical rank's own work to the slow rank's, part by part; None where ranks cannot be compared, or are alike."""
    if summary.slow_rank is None:
        return None
    typical = sum(item.typical_ns for item in summary.waterfall)
    slow = sum(item.rank_ns for item in summary.waterfall)
    shown = [item for item in summary.waterfall if abs(item.excess_ns) >= least * summary.steps.mean_ns][:8]
    rest = slow - typical - sum(item.excess_ns for item in shown)
    if not shown and abs(slow - typical) < least * summary.steps.mean_ns:
        return None
    names, bases, values, colours, words = ["a typical rank"], [0.0], [typical], [COLOURS["other"]], ["own work"]
    at = typical
    steps: list[tuple[str, float, str]] = [(item.label, item.excess_ns, "") for item in shown]
    if abs(rest) >= least * summary.steps.mean_ns:
        steps.append(("the rest", rest, ""))
    for label, excess, _ in steps:
        names.append(label)
        bases.append(min(at, at + excess))
        values.append(abs(excess))
        colours.append(SLOWER if excess > 0 else QUICKER)
        words.append(f"{excess / 1e6:+.2f} ms")
        at += excess
    names.append(f"rank {summary.slow_rank}")
    bases.append(0.0)
    values.append(slow)
    colours.append(COLOURS["other"])
    words.append("own work")
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": "own work",
            "y": names,
            "base": [round(value / 1e6, 4) for value in bases],
            "x": [round(value / 1e6, 4) for value in values],
            "marker": {"color": colours},
            "text": [
                f"{name}: {word}, {value / 1e6:.2f} ms" for name, word, value in zip(names, words, values, strict=True)
            ],
        }
    ]
    return {
        "data": data,
        "layout": layout(
            theme,
            height=64 + 26 * len(names),
            xaxis={"title": {"text": "ms of own work in a mean step"}, "rangemode": "tozero"},
            yaxis={"autorange": "reversed", "type": "category"},
        ),
    }
