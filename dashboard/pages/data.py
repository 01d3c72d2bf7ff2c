"""Data loading: what a batch goes through, how long the training waits, and what the workers do."""

from typing import Any, Final

import numpy as np
import pandas as pd

from ...collector.model.words import milliseconds
from ...collector.reports import figures_data
from ...timeline.vocabulary import COLLATE, DATA_FETCH, DATASET, Category
from ..components import card, chart, empty, link, long_table
from ..words import explain
from . import View
from .steps import rank_choices

#: A worker that takes so many times as long as the median one stands out.
SLOW: Final = 1.3
MAX_WORKERS: Final = 40


def layout(view: View) -> Any:
    """The page."""
    loading = figures_data.loading_spans(view.analysis)
    if loading.empty:
        return empty(
            "Data",
            "This trace does not show data loading. Record the run with tl-run, which shows the loader and its workers, "
            "or name the loader in the profile.",
        )
    rank, shown = view.rank(), figures_data.MAX_RANKS
    return [
        _waits(view, loading),
        chart(
            figures_data.stages(view.analysis, loading, view.theme),
            "Stages of a batch"
            + (f", the {shown} slowest ranks" if len(view.analysis.facts.trace.meta.ranks) > shown else ""),
            "In a worker, or in the training process. Batches that wait long for their use are loaded faster than needed.",
        ),
        rank_choices(view, "data", view.query.get("rank", "")),
        chart(
            figures_data.workers(view.analysis, loading, rank, view.theme) if rank is not None else None,
            f"Loader and workers of rank {rank}, a few steps in the middle of the run",
        ),
        chart(
            figures_data.queue(view.analysis, view.theme),
            "Batches that are ready when the training requests one",
            "Zero: the training waits. The ranks with the emptiest queues are shown.",
        ),
        _workers(loading),
        explain("step", "own work", "p95"),
    ]


def _workers(loading: pd.DataFrame) -> Any:
    """What makes the batches: workers, or the training itself."""
    fetches = loading[loading["name"] == DATA_FETCH]
    if fetches.empty:
        return None
    groups = loading[loading["name"].isin([DATA_FETCH, DATASET, COLLATE])]
    medians = groups.groupby(["rank", "lane", "name"], observed=True)["dur_ns"].agg(["median", "size"]).reset_index()
    wide = medians.pivot(index=["rank", "lane"], columns="name", values="median").fillna(0.0)
    counts = fetches.groupby(["rank", "lane"], observed=True).size()
    usual, count = float(np.median(wide[DATA_FETCH])), len(wide)
    wide = wide.sort_values(DATA_FETCH, ascending=False, kind="stable").head(MAX_WORKERS)
    rows, marked = [], []
    for number, row in enumerate(wide.reset_index().to_dict("records")):
        rank, lane = int(row["rank"]), str(row["lane"])
        if len(wide) > 1 and row[DATA_FETCH] > SLOW * usual:
            marked.append(number)
        rows.append(
            (
                link(f"rank {rank}, {lane}", "timeline", rank=rank, q=DATA_FETCH),
                int(counts.get((rank, lane), 0)),
                milliseconds(float(row[DATA_FETCH])),
                milliseconds(float(row.get(DATASET, 0.0))),
                milliseconds(float(row.get(COLLATE, 0.0))),
                "slower than the others" if number in marked else "",
            )
        )
    columns = ("loader", "batches", "a batch (median)", "of it dataset", "of it collate", "")
    return card("Loaders of batches, slowest first" + _more(count), *long_table(columns, rows, marked))


def _more(count: int) -> str:
    """What a heading adds where a table does not list all."""
    return f"; {count - MAX_WORKERS} more are not listed" if count > MAX_WORKERS else ""


def _waits(view: View, loading: pd.DataFrame) -> Any:
    waits = figures_data.waits_in(loading)
    if waits.empty:
        return None
    facts = view.analysis.facts
    data = facts.part(str(Category.DATA)) if facts.steps.count else None
    of_rank = waits.groupby("rank", observed=True)["dur_ns"]
    found = of_rank.agg(["size", "median", "max", "mean"]).assign(p95=of_rank.quantile(0.95))
    found = found.sort_values("mean", ascending=False, kind="stable")
    rows = []
    for rank, row in found.head(MAX_WORKERS).iterrows():
        number = int(str(rank))
        share = ""
        if data is not None and number in facts.ranks:
            place = facts.ranks.index(number)
            share = f"{data[place].sum() / max(float(facts.steps.duration_ns[place].sum()), 1.0):.1%}"
        rows.append(
            (
                link(f"rank {number}", "steps", rank=number),
                int(row["size"]),
                *(milliseconds(float(row[name])) for name in ("median", "p95", "max")),
                share,
            )
        )
    columns = ("rank", "batches", "median", "p95", "longest", "share of the step")
    return card(
        "How long the training waits for a batch, longest first" + _more(len(found)),
        *long_table(columns, rows),
    )
