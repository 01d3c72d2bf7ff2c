"""Data loading: how long the training waits, and what its workers do."""

from typing import Any, Final

import numpy as np
import pandas as pd

from ...collector.model.words import milliseconds
from ...collector.reports import figures
from ...timeline.vocabulary import COLLATE, DATA_FETCH, DATA_WAIT, DATASET, LaneKind
from ..components import card, empty, link, plot, table
from . import View

#: A worker that takes so many times as long as the median one stands out.
SLOW: Final = 1.3
MOST_WORKERS: Final = 128


def layout(view: View) -> Any:
    """The page."""
    spans = view.analysis.trace.spans
    loading = spans[spans["lane_kind"].isin([str(LaneKind.DATA), str(LaneKind.WORKER)])]
    if loading.empty:
        return empty(
            "Data",
            "This trace does not show data loading. Record the run with tl-run, which shows the loader and its workers, "
            "or name the loader in the profile.",
        )
    return [
        _workers(loading),
        _waits(loading),
        plot(figures.heatmap(view.analysis, "data", view.theme), "data-heatmap", "Waiting for data, by rank and step")
        if view.analysis.facts.steps.count
        else None,
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
    wide = wide.sort_values(DATA_FETCH, ascending=False, kind="stable").head(MOST_WORKERS)
    usual = float(np.median(wide[DATA_FETCH]))
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
    columns = ("who makes batches", "batches", "a batch (median)", "of it dataset", "of it collate", "")
    return card("Who makes the batches, slowest first", table(columns, rows, marked))


def _waits(loading: pd.DataFrame) -> Any:
    waits = loading[loading["name"] == DATA_WAIT]
    if waits.empty:
        return None
    grouped = waits.groupby("rank", observed=True)["dur_ns"]
    rows = []
    for rank, durations in grouped:
        rows.append(
            (
                link(f"rank {rank}", "steps", rank=rank),
                len(durations),
                milliseconds(float(durations.median())),
                milliseconds(float(durations.quantile(0.95))),
                milliseconds(float(durations.max())),
            )
        )
    return card("How long the training waits for a batch", table(("rank", "batches", "median", "p95", "longest"), rows))
