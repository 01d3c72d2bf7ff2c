"""Ranks side by side: who is slow, and who waits for whom."""

from typing import Any, Final

import numpy as np
from dash import dcc, html

from ...collector.model.breakdown import EXPOSED, PARTS
from ...collector.model.waiting import waits_for
from ...collector.model.words import milliseconds
from ...collector.reports import figures
from ..components import card, empty, link, plot, table
from . import View

#: What is shown of the ranks at first.
DEFAULT: Final = "own work"
MOST_PAIRS: Final = 20
MOST_RANKS: Final = 64


def layout(view: View) -> Any:
    """The page."""
    facts = view.analysis.facts
    if not facts.steps.count:
        return empty("Ranks", "There are no steps in this trace, so that ranks cannot be compared.")
    there = [part for part in PARTS if facts.part(part).any()]
    what = view.query.get("what", DEFAULT)
    what = what if what in {*there, DEFAULT, "waits"} else DEFAULT
    choice = dcc.Dropdown(options=[DEFAULT, "waits", *there], value=what, clearable=False, id="ranks-what")
    return [
        _ranking(view),
        html.Div([html.Label("Show", htmlFor="ranks-what"), choice], className="controls"),
        plot(figures.heatmap(view.analysis, what, view.theme), "ranks-heatmap", f"Every rank's {what} over the run"),
        plot(figures.critical_path(view.analysis, view.theme), "path", "What holds the steps: the critical path")
        if len(view.analysis.critical_path)
        else None,
        _waits(view),
    ]


def _ranking(view: View) -> Any:
    facts = view.analysis.facts
    own = facts.breakdown.own_work_ns.mean(axis=1)
    waits = np.sum([facts.part(part) for part in EXPOSED], axis=0).mean(axis=1)
    path: dict[Any, float] = view.analysis.critical_path.groupby("rank")["share"].sum().to_dict()
    guilty = {rank for item in view.analysis.findings if item.class_ in {"straggler", "data"} for rank in item.ranks}
    guilty = set() if len(guilty) == len(facts.ranks) else guilty
    order = np.argsort(-own, kind="stable")[:MOST_RANKS]
    rows = []
    for row in order:
        rank = facts.ranks[row]
        rows.append(
            (
                link(f"rank {rank}", "steps", rank=rank),
                milliseconds(float(own[row])),
                milliseconds(float(waits[row])),
                f"{float(path.get(rank, 0.0)):.0%}",
                view.analysis.trace.meta.hosts.get(rank, ""),
                "the others wait for it" if rank in guilty else "",
            )
        )
    marked = [number for number, row in enumerate(order) if facts.ranks[row] in guilty]
    columns = ("rank", "own work", "waits", "of the critical path", "host", "")
    return card("Ranks, slowest first (mean of a step)", table(columns, rows, marked))


def _waits(view: View) -> Any:
    pairs = waits_for(view.analysis.facts)
    if pairs.empty:
        return None
    rows = [
        (f"rank {row['waiter']}", f"rank {row['culprit']}", milliseconds(row["mean_ns"]), f"{row['ratio']:.0%}")
        for row in pairs.head(MOST_PAIRS).to_dict("records")
    ]
    columns = ("who waits", "for whom", "a step", "of its collectives")
    return card("Who waits for whom", table(columns, rows))
