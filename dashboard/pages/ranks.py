"""Ranks side by side: who deviates, who waits for whom, and who holds the steps."""

from typing import Any, Final

import numpy as np
from dash import html

from ...collector.model.breakdown import EXPOSED, PARTS
from ...collector.model.typical import away_from_typical
from ...collector.model.words import milliseconds, signed
from ...collector.reports import figures_ranks
from ...collector.reports.figures_ranks import RankGroup
from ...collector.reports.palette import label_of
from ...collector.reports.summary import waited_for
from ..components import card, chart, choices, empty, link, long_table, table
from ..words import explain
from . import View

#: What is shown of the ranks at first.
DEFAULT: Final = "own work"
MAX_PAIRS: Final = 20
MAX_RANKS: Final = 64
MAX_GROUPS: Final = 40


def layout(view: View) -> Any:
    """The page."""
    facts = view.analysis.facts
    if view.summary.slow_rank is None:
        return empty(
            "Ranks",
            "Ranks cannot be compared here: there are no steps, only one rank, or the trace does not show what ranks compute.",
        )
    there = [part for part in PARTS if facts.part(part).any()]
    what = view.query.get("what", DEFAULT)
    what = what if what in {*there, "waits"} else DEFAULT
    host = view.query.get("host", "")
    options = [("", DEFAULT), ("waits", "waits"), *((part, label_of(part, facts.breakdown)) for part in there)]
    groups = figures_ranks.groups_of(view.analysis)
    is_grouped = any(len(group.rows) > 1 for group in groups)
    who = "the slowest rank of each group" if is_grouped and not host else "every rank"
    return [
        _ranking(view),
        choices("Map of", "ranks", "what", options, "" if what == DEFAULT else what, host=host),
        choices(
            "Ranks of",
            "ranks",
            "host",
            [("", "all, by group"), *((name, name) for name in _slowest_groups(view, groups))],
            host,
            what=what,
        )
        if is_grouped
        else None,
        chart(
            figures_ranks.deviations(view.analysis, what, host, view.theme),
            f"How far {who} is from the typical rank: {what}",
            "Orange takes longer than the median of the other ranks in the same step, blue is shorter.",
        ),
        _waits(view),
        chart(
            figures_ranks.path_in_time(view.analysis, view.theme),
            "What holds each step: the critical path over the run",
        ),
        chart(
            figures_ranks.holders(view.analysis, host, view.theme),
            "Which group of ranks holds each step" if is_grouped and not host else "Which rank holds each step",
        ),
        explain("own work", "waits", "typical rank", "critical path", "exposed", "collective"),
    ]


def _slowest_groups(view: View, groups: tuple[RankGroup, ...]) -> list[str]:
    """Names of the groups to choose from: all, or of many those with the slowest ranks, slowest first."""
    if len(groups) <= MAX_GROUPS:
        return [group.name for group in groups]
    own = view.analysis.facts.breakdown.own_work_ns.mean(axis=1)
    return [g.name for g in sorted(groups, key=lambda g: -float(own[list(g.rows)].max()))[:MAX_GROUPS]]


def _ranking(view: View) -> Any:
    facts = view.analysis.facts
    own = facts.breakdown.own_work_ns.mean(axis=1)
    waits = np.sum([facts.part(part) for part in EXPOSED], axis=0).mean(axis=1)
    path: dict[int, float] = {}
    for row in view.summary.path:
        path[row.rank] = path.get(row.rank, 0.0) + row.share
    guilty = waited_for(view.analysis)
    order = np.argsort(-own, kind="stable")[:MAX_RANKS]
    away = away_from_typical(own)
    knows_path, hosts = bool(view.summary.path), view.analysis.trace.meta.hosts
    rows = []
    for number in order:
        rank = facts.ranks[number]
        rows.append(
            (
                link(f"rank {rank}", "steps", rank=rank),
                milliseconds(float(own[number])),
                signed(float(away[number])),
                milliseconds(float(waits[number])),
                *((f"{path.get(rank, 0.0):.0%}",) if knows_path else ()),
                *((hosts.get(rank, ""),) if hosts else ()),
                "the others wait for it" if rank in guilty else "",
            )
        )
    marked = [place for place, number in enumerate(order) if facts.ranks[number] in guilty]
    columns = (
        "rank",
        "own work",
        "from typical",
        "waits",
        *(("of the critical path",) if knows_path else ()),
        *(("host",) if hosts else ()),
        "",
    )
    more = len(own) - len(order)
    heading = "Ranks, slowest first (mean of a step)" + (f"; {more} more are not listed" if more > 0 else "")
    return card(heading, *long_table(columns, rows, marked))


def _waits(view: View) -> Any:
    summary = view.summary
    if not view.analysis.facts.has_one_clock:
        return card(
            "Who waits for whom",
            html.P(
                "The clocks of these ranks are not aligned: the order in which ranks reach a collective is unknown."
            ),
        )
    if not summary.waits:
        return None
    rows = [
        (f"rank {row.waiter}", f"rank {row.culprit}", milliseconds(row.mean_ns), f"{row.ratio:.0%}")
        for row in summary.waits[:MAX_PAIRS]
    ]
    columns = ("who waits", "for whom", "a step", "of its collectives")
    parts: list[Any] = [table(columns, rows)]
    if len(view.analysis.facts.ranks) > 2:  # noqa: PLR2004  of two ranks the table says it all
        return html.Div(
            [chart(figures_ranks.waits(summary, view.theme), "Who waits for whom"), card("The longest waits", *parts)]
        )
    return card("Who waits for whom", *parts)
