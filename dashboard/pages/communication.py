"""Collectives: who waits for which, how long each one lives, and how fast bytes move."""

from typing import Any, Final

import numpy as np
import pandas as pd
from dash import html

from ...collector.model.exposure import exposed_by, exposed_by_collective
from ...collector.model.words import milliseconds
from ...collector.reports import figures_communication
from ...collector.reports.rows import bandwidth_words
from ..components import card, chart, choices, empty, long_table, table
from ..words import explain
from . import View
from .steps import ordered_choices

MAX_ROWS: Final = 60
GROUPS: Final = ("layer", "tensor", "caller", "kind", "process set")


def layout(view: View) -> Any:
    """The page."""
    analysis = view.analysis
    if analysis.collectives.empty:
        return empty(
            "Communication",
            "No collectives were recorded. With several ranks: was the model wrapped in hvd.DistributedOptimizer or DDP?",
        )
    exposed = exposed_by_collective(analysis.facts)
    groups = {
        group: found for group in GROUPS if _says_something(found := exposed_by(analysis.facts, group, exposed), group)
    }
    first = next(iter(groups), GROUPS[0])
    by = view.query.get("by", "")
    by = by if by in groups else first
    kept = {name: view.query.get(name) for name in ("rank", "step")}
    return [
        _overview(view),
        choices("Exposed time by", "communication", "by", [("" if g == first else g, g) for g in groups],
                "" if by == first else by, **kept) if len(groups) > 1 else None,
        chart(
            figures_communication.exposed(groups[by], view.theme),
            f"What the training waits for, by {by}",
            "Every moment of waiting belongs to the collective that ends next; of a fused one, to its tensors by their bytes.",
        ) if by in groups else None,
        _lives(view, "" if by == first else by),
        chart(
            figures_communication.costs(analysis, view.summary.lines, view.theme),
            "What a collective costs by its size",
            "Points: median time of moving bytes; larger ones take more time in all. Dotted: the latency and bandwidth that fit.",
        ),
        _by_process_set(view),
        _table(view),
        explain("exposed", "hidden", "contention", "negotiate", "queue", "wait", "transfer", "algbw", "busbw", "process set"),
    ]  # fmt: skip


def _says_something(found: pd.DataFrame, group: str) -> bool:
    """Not where nobody's caller is known, or where all are of one process set."""
    names = set(found["name"])
    return bool(names) and names != {"unknown"} and (group != "process set" or len(names) > 1)


def _overview(view: View) -> Any:
    found, step = view.summary.communication, view.analysis.facts.mean_step_ns
    if found is None:
        return None
    rows: list[tuple[str, str]] = []

    def of_step(ns: float) -> str:
        return f"{milliseconds(ns)} ({ns / max(step, 1):.0%} of a step)"

    most, least = found.most_exposed, found.least_exposed
    if most is not None and least is not None:
        if most[0] == least[0]:
            rows.append(("exposed: the training waits", of_step(most[1])))
        else:
            rows.append((f"exposed: the training of rank {most[0]} waits, longest", of_step(most[1])))
            rows.append((f"exposed: that of rank {least[0]}, shortest", of_step(least[1])))
    if found.hidden_ns:
        hidden = sorted(found.hidden_ns.values())
        least_hidden, most_hidden = milliseconds(hidden[0]), milliseconds(hidden[-1])
        same = least_hidden == most_hidden
        rows.append(("hidden behind computation", most_hidden if same else f"{least_hidden} to {most_hidden} by rank"))
    elif step:
        rows.append(("under way, hidden or not", of_step(found.under_way_ns)))
    if found.contention_ns:
        rows.append(("taken from backward meanwhile (contention)", milliseconds(found.contention_ns)))
    rows.append(("tensors a collective", f"{found.tensors:.1f}"))
    if found.negotiation_ns is not None:
        rows.append(("negotiation (median)", milliseconds(found.negotiation_ns)))
    if found.queue_ns is not None:
        rows.append(("queue (median)", milliseconds(found.queue_ns)))
    if found.copy_ns:
        rows.append(("copies into and out of fusion buffers, each", milliseconds(found.copy_ns)))
    said = None
    if step and found.hidden_ns is None:
        said = html.P("How much of it computation hides is not visible in this trace.", className="soft")
    return card("How communication does", table(("", ""), rows), said)


def _lives(view: View, by: str) -> Any:
    """One step of one rank: the slowest rank that waits, in its median step, or what the address says."""
    facts, found = view.analysis.facts, view.summary.communication
    if not facts.steps.count or found is None:
        return None
    exposed = found.exposed_ns or dict.fromkeys(facts.ranks, 0.0)
    order = sorted(exposed, key=lambda rank: -exposed[rank])
    why = "waits longest" if found.exposed_ns else ""
    asked_rank = view.number("rank")
    rank = asked_rank if asked_rank in facts.ranks else order[0]
    row = facts.ranks.index(rank)
    durations = facts.steps.duration_ns[row]
    number = view.number("step")
    if number is None or number not in facts.steps.numbers:
        number = int(facts.steps.numbers[int(np.argsort(durations, kind="stable")[len(durations) // 2])])
    figure = figures_communication.lives(view.analysis, rank, number, view.theme)
    if figure is None:
        return None
    words = "From the request for each collective to its end."
    if facts.breakdown.knows_compute:
        words += " Blue stretches behind: backward; orange ones: the training waits (exposed)."
    asked_step, asked_by = view.query.get("step"), by
    at = int(np.flatnonzero(facts.steps.numbers == number)[0])
    near = [int(facts.steps.numbers[place]) for place in (at - 1, at + 1) if 0 <= place < facts.steps.count]
    return html.Div(
        [
            ordered_choices(view, "communication", view.query.get("rank", ""), order, why, step=asked_step, by=asked_by),
            choices("Step", "communication", "step", [(str(number), f"step {number}"), *((str(n), f"step {n}") for n in near)],
                    str(number), rank=view.query.get("rank"), by=asked_by),
            chart(figure, f"The collectives of step {number} on rank {rank}", words),
        ]
    )  # fmt: skip


def _by_process_set(view: View) -> Any:
    rows = view.summary.collectives
    sets = sorted({row.process_set for row in rows})
    if len(sets) < 2:  # noqa: PLR2004  all are of all ranks
        return None
    shown = []
    for number in sets:
        mine = [row for row in rows if row.process_set == number]
        total = sum(row.count * row.median_ns for row in mine)
        moved = sum(row.count * max(row.nbytes, 0) for row in mine)
        shown.append((f"set {number}", sum(row.count for row in mine), f"{moved / 1e6:,.1f} MB", milliseconds(total)))
    return card("By process set", table(("process set", "collectives", "bytes of a rank", "time"), shown))


def _table(view: View) -> Any:
    columns = ("kind", "bytes", "process set", "count", "tensors", "median", "wait", "transfer", "algbw", "busbw")
    rows = [
        (
            row.kind,
            f"{row.nbytes:,}" if row.nbytes >= 0 else "unknown",
            row.process_set,
            row.count,
            f"{row.tensors:.0f}",
            milliseconds(row.median_ns),
            *row.split_words,
            bandwidth_words(row.algbw_gbps),
            bandwidth_words(row.busbw_gbps),
        )
        for row in view.summary.collectives[:MAX_ROWS]
    ]
    more = len(view.summary.collectives) - len(rows)
    heading = "Collectives of the analysed steps, most time first; bandwidths in GB/s" + (
        f" ({more} more sizes not shown)" if more > 0 else ""
    )
    return card(heading, *long_table(columns, rows))
