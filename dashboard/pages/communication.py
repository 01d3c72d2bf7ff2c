"""Collectives: how many, how large, how fast, how well hidden."""

from typing import Any, Final

import numpy as np

from ...collector.model.breakdown import EXPOSED, IDLE
from ...collector.model.words import milliseconds
from ...collector.reports import figures
from ..components import card, empty, plot, table
from . import View

MOST_ROWS: Final = 60


def layout(view: View) -> Any:
    """The page."""
    analysis = view.analysis
    if analysis.collectives.empty:
        return empty(
            "Communication",
            "No collectives were recorded. With several ranks: was the model wrapped in hvd.DistributedOptimizer or DDP?",
        )
    return [
        _overview(view),
        plot(
            figures.collectives(analysis, view.theme),
            "busbw",
            "Size against bus bandwidth (dotted: the best of this run)",
        )
        if (analysis.collectives["busbw_gbps"] > 0).any()
        else None,
        _table(view),
    ]


def _overview(view: View) -> Any:
    facts = view.analysis.facts
    rows: list[tuple[str, str]] = []
    if facts.steps.count:
        exposed = np.sum([facts.part(part) for part in EXPOSED if part != IDLE], axis=0)
        hidden = facts.breakdown.hidden_ns
        step = facts.mean_step_ns
        rows += [
            (
                "exposed: the training waits",
                f"{milliseconds(float(exposed.mean()))} ({exposed.mean() / step:.0%} of a step)",
            ),
            ("hidden behind computation", milliseconds(float(hidden.mean()))),
        ]
        if facts.contention_ns.any():
            rows.append(("taken from backward meanwhile", milliseconds(float(facts.contention_ns.mean()))))
    table_of = facts.in_steps(facts.collectives) if facts.steps.count else facts.collectives
    if len(table_of):
        asked = table_of[(table_of["submitted_ns"] >= 0) & (table_of["negotiated_ns"] >= 0)]
        rows.append(("tensors a collective", f"{float(table_of['tensors'].mean()):.1f}"))
        if len(asked):
            took = (asked["negotiated_ns"] - asked["submitted_ns"]).median()
            queued = (asked["start_ns"] - asked["negotiated_ns"]).clip(lower=0).median()
            rows += [
                ("negotiation (median)", milliseconds(float(took))),
                ("queue (median)", milliseconds(float(queued))),
            ]
        rows.append(
            ("copies into and out of fusion buffers", milliseconds(float(table_of["copy_ns"].mean())) + " each")
        )
    return card("How communication does", table(("", ""), rows))


def _table(view: View) -> Any:
    columns = (
        "kind",
        "bytes",
        "process set",
        "count",
        "tensors",
        "median",
        "wait",
        "transfer",
        "algbw GB/s",
        "busbw GB/s",
    )
    rows = [
        (
            row["kind"],
            f"{int(row['bytes']):,}" if row["bytes"] >= 0 else "unknown",
            int(row["process_set"]),
            int(row["count"]),
            f"{row['tensors']:.0f}",
            milliseconds(float(row["median_ns"])),
            milliseconds(float(row["wait_ns"])),
            milliseconds(float(row["transfer_ns"])),
            f"{row['algbw_gbps']:.3f}",
            f"{row['busbw_gbps']:.3f}",
        )
        for row in view.analysis.collectives.head(MOST_ROWS).to_dict("records")
    ]
    more = len(view.analysis.collectives) - len(rows)
    heading = "Collectives of the analysed steps, most time first" + (
        f" ({more} more sizes not shown)" if more > 0 else ""
    )
    return card(heading, table(columns, rows))
