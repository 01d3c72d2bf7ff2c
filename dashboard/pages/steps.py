"""Steps over the run: how long they take, what of, and which stand out."""

from typing import Any

import numpy as np
from dash import dcc, html

from ...collector.model.words import milliseconds
from ...collector.reports import figures
from ..components import card, empty, link, plot, table
from . import View

#: Outliers that are listed.
MOST_OUTLIERS = 20


def layout(view: View) -> Any:
    """The page."""
    facts = view.analysis.facts
    if not facts.steps.count:
        return empty("Steps", "There are no steps in this trace: record at least ten steps of training.")
    rank = view.number("rank")
    rank = rank if rank in facts.ranks else None
    choice = dcc.Dropdown(
        options=[{"label": "all ranks (mean)", "value": ""}]
        + [{"label": f"rank {number}", "value": str(number)} for number in facts.ranks],
        value="" if rank is None else str(rank),
        clearable=False,
        id="steps-rank",
    )
    return [
        html.Div([html.Label("Ranks", htmlFor="steps-rank"), choice], className="controls"),
        plot(
            figures.steps_over_time(view.analysis, rank, view.theme),
            "steps-over-time",
            "Every step, by part (click to see it on the timeline)",
        ),
        plot(figures.durations(view.analysis, view.theme), "durations", "How long steps take"),
        _outliers(view),
    ]


def _outliers(view: View) -> Any:
    steps = view.analysis.facts.steps
    longest = steps.duration_ns.max(axis=0)
    usual = float(np.median(longest))
    order = np.argsort(-longest, kind="stable")[:MOST_OUTLIERS]
    rows = []
    for column in order:
        number, rank = int(steps.numbers[column]), steps.ranks[int(steps.duration_ns[:, column].argmax())]
        took = float(longest[column])
        where = link(f"step {number}", "timeline", step=number, rank=rank)
        rows.append(
            (where, milliseconds(took), f"{took / usual:.2f}", f"rank {rank}", _largest_part(view, int(column)))
        )
    columns = ("step", "took", "times the median", "longest on", "most longer than usual")
    return card("Longest steps", table(columns, rows))


def _largest_part(view: View, column: int) -> str:
    parts = view.analysis.facts.breakdown.parts_ns
    excess = {name: float((values[:, column] - np.median(values, axis=1)).max()) for name, values in parts.items()}
    part = max(excess, key=excess.__getitem__)
    return f"{part} (+{milliseconds(excess[part])})" if excess[part] > 0 else ""
