"""Steps over the run: how long they take, what of, and which stand out."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from dash import dcc, html

from ...collector.model.breakdown import EXPOSED
from ...collector.model.words import milliseconds, signed
from ...collector.reports import figures
from ...collector.reports.palette import label_of
from ..components import address, card, chart, choices, empty, link, table
from ..words import explain
from . import View

#: Outliers that are listed.
MAX_OUTLIERS: Final = 20
#: A step this much longer than the median is slow; where none is, the longest few are listed as what they are.
SLOW_RATIO: Final = 1.1
#: Ranks that have a link; others are asked for by number.
MAX_LINKS: Final = 12
MAX_PARTS: Final = 3
#: Fewer steps need no zoom.
MIN_STRETCH: Final = 8


def layout(view: View) -> Any:
    """The page."""
    facts = view.analysis.facts
    if not facts.steps.count:
        return empty("Steps", "There are no steps in this trace: record at least ten steps of training.")
    chosen = view.query.get("rank", "")
    everything = chosen == "all"
    rank = None if everything else view.rank()
    shown = _shown(view)
    who = "mean of all ranks, which hides a slow one" if everything else f"rank {rank}"
    return [
        rank_choices(view, "steps", chosen, with_all=True),
        _drawer(view, rank),
        _stretches(view, shown),
        chart(
            figures.steps_over_time(view.analysis, rank, view.theme, shown),
            f"Every step, by part: {who}",
            "Click a step to see what was different in it; drag over a stretch to see it closer.",
            address("steps", rank=chosen) + ("&" if chosen else "?") + "step={at}&from={from}&to={to}",
        ),
        chart(figures.durations(view.analysis, view.theme), "How long steps take", _of_ranks(view)),
        _outliers(view),
        explain("step", "p95", "exposed", "negotiate", "queue", "fusion", "idle"),
    ]


def _of_ranks(view: View) -> str:
    """What is counted as the time of a step, where ranks may say different things."""
    return "Of each step, the median of its ranks." if len(view.analysis.facts.ranks) > 1 else ""


def _shown(view: View) -> tuple[int, int] | None:
    """First and last step that the address asks for; None for all."""
    numbers = view.analysis.facts.steps.numbers
    low, high = view.number("from"), view.number("to")
    if low is None or high is None:
        return None
    low, high = max(min(low, high), int(numbers[0])), min(max(low, high), int(numbers[-1]))
    return (low, high) if high > low and (low, high) != (numbers[0], numbers[-1]) else None


def _stretches(view: View, shown: tuple[int, int] | None) -> Any:
    """The way out of a stretch, and to its neighbours, by keyboard, too."""
    numbers = view.analysis.facts.steps.numbers
    if len(numbers) < MIN_STRETCH:
        return None
    low, high = shown or (int(numbers[0]), int(numbers[-1]))
    middle, length = (low + high) // 2, max((high - low) // 2, 2)
    kept = {"rank": view.query.get("rank")}
    links = [
        ("all", {}, shown is None),
        ("earlier half", {"from": low, "to": max(middle, low + 1)}, False),
        ("later half", {"from": middle, "to": high}, False),
        *((("earlier", {"from": low - length, "to": high - length}, False),) if low > numbers[0] else ()),
        *((("later", {"from": low + length, "to": high + length}, False),) if high < numbers[-1] else ()),
    ]
    shown_now = [] if shown is None else [html.Span(f"{low} to {high}", className="choice here")]
    return html.Nav(
        [
            html.Span("Steps", className="soft"),
            *shown_now,
            *(
                dcc.Link(words, href=address("steps", **kept, **where), className="choice here" if here else "choice")
                for words, where, here in links
            ),
        ],
        className="choices",
        **{"aria-label": "steps shown"},
    )


def rank_choices(view: View, page: str, chosen: str, *, with_all: bool = False, **kept: object) -> Any:
    """Ranks to choose from, slowest first."""
    facts, slow = view.analysis.facts, view.summary.slow_rank
    own = facts.breakdown.own_work_ns.mean(axis=1) if facts.steps.count else np.zeros(len(facts.ranks))
    order = [facts.ranks[row] for row in np.argsort(-own, kind="stable")]
    return ordered_choices(view, page, chosen, order, "slowest" if slow is not None else "", with_all=with_all, **kept)


def ordered_choices(
    view: View, page: str, chosen: str, order: Sequence[int], why: str, *, with_all: bool = False, **kept: object
) -> Any:
    """Ranks to choose from in an order; the first is shown if none is chosen.

    Args:
        why: what the first one is.
    """
    if len(order) < 2:  # noqa: PLR2004  nothing to choose
        return None
    first = order[0]
    options = [("", f"rank {first} ({why})" if why else f"rank {first}")]
    options += [(str(rank), f"rank {rank}") for rank in order[1:MAX_LINKS]]
    asked = view.number("rank")
    if asked in order[MAX_LINKS:]:
        options.append((str(asked), f"rank {asked}"))
    if with_all:
        options.append(("all", "mean of all"))
    return choices("Rank", page, "rank", options, "" if chosen == str(first) else chosen, **kept)


def _drawer(view: View, rank: int | None) -> Any:
    """One step: what it took, and what was different from the median step of the same rank."""
    facts = view.analysis.facts
    number = view.number("step")
    if number is None or number not in facts.steps.numbers:
        return None
    column = int(np.flatnonzero(facts.steps.numbers == number)[0])
    row = int(facts.steps.duration_ns[:, column].argmax()) if rank is None else facts.ranks.index(rank)
    parts = facts.breakdown.parts_ns
    rows = [
        (
            label_of(part, facts.breakdown),
            milliseconds(float(values[row, column])),
            milliseconds(float(np.median(values[row]))),
            signed(float(values[row, column] - np.median(values[row]))),
            values[row, column] - np.median(values[row]),
        )
        for part, values in parts.items()
        if values[row, column] or np.median(values[row])
    ]
    rows.sort(key=lambda item: -abs(item[4]))
    took, usual = float(facts.steps.duration_ns[row, column]), float(np.median(facts.steps.duration_ns[row]))
    around = [int(facts.steps.numbers[at]) for at in (column - 1, column + 1) if 0 <= at < facts.steps.count]
    links = [
        link("on the timeline", "timeline", step=number, rank=facts.ranks[row]),
        " · ",
        link("its collectives", "communication", step=number, rank=facts.ranks[row]),
        *(
            part
            for near in around
            for part in (" · ", link(f"step {near}", "steps", step=near, rank=view.query.get("rank")))
        ),
        " · ",
        link("close", "steps", rank=view.query.get("rank")),
    ]
    return html.Section(
        [
            html.H2(
                f"Step {number} on rank {facts.ranks[row]}: {milliseconds(took)}, {took / max(usual, 1):.2f} times the median"
            ),
            table(("part", "this step", "median", "difference"), [item[:4] for item in rows]),
            html.P(links),
        ],
        className="card drawer",
        id="step-drawer",
        role="region",
        **{"aria-label": f"step {number}"},
    )


def _outliers(view: View) -> Any:
    steps = view.analysis.facts.steps
    longest = steps.duration_ns.max(axis=0)
    usual = float(np.median(longest))
    order = np.argsort(-longest, kind="stable")[:MAX_OUTLIERS]
    slow = [int(column) for column in order if longest[column] > SLOW_RATIO * usual]
    if not slow:
        return card(
            "Slow steps",
            html.P(
                f"No step takes more than {SLOW_RATIO:.1f} times the median of {milliseconds(usual)}"
                + (" (each step on the rank where it takes longest)." if len(steps.ranks) > 1 else ".")
            ),
        )
    rows = []
    for column in slow:
        number, row = int(steps.numbers[column]), int(steps.duration_ns[:, column].argmax())
        took = float(longest[column])
        where = link(f"step {number}", "steps", step=number, rank=steps.ranks[row])
        rows.append(
            (where, milliseconds(took), f"{took / usual:.2f}", f"rank {steps.ranks[row]}", _different(view, column))
        )
    columns = ("step", "took", "times the median", "longest on", "what was longer than usual")
    return card(f"Slow steps: {len(slow)} take more than {SLOW_RATIO:.1f} times the median", table(columns, rows))


def _different(view: View, column: int) -> str:
    """The parts that grew most, with the rank on which they did; what ranks do before what they wait for."""
    breakdown = view.analysis.facts.breakdown
    excess = []
    for part, values in breakdown.parts_ns.items():
        more = values[:, column] - np.median(values, axis=1)
        row = int(more.argmax())
        words = f"{label_of(part, breakdown)} on rank {breakdown.ranks[row]}"
        excess.append((part in EXPOSED, -float(more[row]), words))
    least = 0.2 * max(-min(ns for _, ns, _ in excess), 1.0)
    shown = [f"{words} (+{milliseconds(-ns)})" for _, ns, words in sorted(excess) if -ns > least]
    return ", ".join(shown[:MAX_PARTS])
