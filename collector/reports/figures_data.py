"""Plots of data loading: the stages of a batch, the workers side by side, and how many batches wait in the queue."""

from typing import Any, Final

import numpy as np
import pandas as pd

from ...timeline.commands.arguments import clean
from ...timeline.vocabulary import COLLATE, DATA_FETCH, DATA_WAIT, DATASET, Category, LaneKind
from ..analysis import Analysis
from ..model.loading import Loading
from .figures import Figure, as_milliseconds, in_columns, layout, steps_axis, whole_steps
from .palette import COLOURS

MAX_RANKS: Final = 32
#: Lines of a plot: the ranks that wait most.
MAX_LINES: Final = 6
#: Steps that the workers' plot shows.
GANTT_STEPS: Final = 6
MAX_MARKS: Final = 3000
#: Colours of ranks, where each has a line.
LINES: Final = tuple(
    COLOURS[name] for name in ("collective", "backward", "optimizer", "queue", "data", "forward", "negotiate")
)
_DATA: Final = [str(LaneKind.DATA), str(LaneKind.WORKER)]


def loading_spans(analysis: Analysis) -> pd.DataFrame:
    """What the trace shows of data loading."""
    spans = analysis.trace.spans
    return spans[spans["lane_kind"].isin(_DATA)]


def waits_in(loading: pd.DataFrame) -> pd.DataFrame:
    """The spans in which the training waits for a batch: ours, else what a profile says that it does on the training's thread."""
    own = loading[loading["name"] == DATA_WAIT]
    if not own.empty:
        return own
    is_wait = (loading["lane_kind"] == str(LaneKind.DATA)) & (loading["category"] == str(Category.DATA))
    return loading[is_wait & ~loading["name"].isin([DATA_FETCH, DATASET, COLLATE])]


def stages(analysis: Analysis, loading: pd.DataFrame, theme: str = "light") -> Figure | None:
    """What a batch of each rank goes through, mean; None where nobody is seen making batches."""
    fetches = loading[loading["name"] == DATA_FETCH]
    if fetches.empty:
        return None
    facts = analysis.facts
    slowest = fetches.groupby("rank", observed=True)["dur_ns"].mean().nlargest(MAX_RANKS, keep="all").head(MAX_RANKS)
    ranks = sorted(int(str(rank)) for rank in slowest.index)
    totals = loading.groupby(["rank", "name"], observed=True)["dur_ns"].sum()
    counts = fetches.groupby("rank", observed=True).size()

    def per_batch(name: str) -> np.ndarray:
        return np.array([float(totals.get((rank, name), 0)) / max(int(counts.get(rank, 0)), 1) for rank in ranks])

    fetch, dataset, collate = per_batch(DATA_FETCH), per_batch(DATASET), per_batch(COLLATE)
    queued, waited = _queued(analysis, ranks)
    h2d = str(Category.H2D)
    copies = np.zeros(len(ranks))
    if facts.steps.count:
        copies = np.array(
            [float(facts.part(h2d)[facts.ranks.index(rank)].mean()) for rank in ranks if rank in facts.ranks]
        )
    rows = (
        ("dataset", "data", dataset),
        ("collate", "fusion", collate),
        ("rest of making it", "other", np.maximum(fetch - dataset - collate, 0)),
        ("ready, in the queue", "queue", queued),
        ("copy to the device", "h2d", copies),
    )
    del waited
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": [f"rank {rank}" for rank in ranks],
                "x": as_milliseconds(values),
                "marker": {"color": COLOURS[colour]},
                "hovertemplate": "%{y}: %{x:.2f} ms<extra>%{fullData.name}</extra>",
            }
            for name, colour, values in rows
            if len(values) == len(ranks) and values.any()
        ],
        "layout": layout(
            theme,
            barmode="stack",
            height=100 + 26 * len(ranks),
            xaxis={"title": {"text": "ms of a batch, from the beginning of its making"}, "rangemode": "tozero"},
            yaxis={"autorange": "reversed", "type": "category"},
        ),
    }


def _queued(analysis: Analysis, ranks: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """By rank how long a batch lies ready, and how long the loop waits for one: means, ns."""
    found = _matched(analysis)
    ready, waited = np.zeros(len(ranks)), np.zeros(len(ranks))
    if found is None:
        return ready, waited
    for number, rank in enumerate(ranks):
        mine = found.rank == analysis.facts.ranks.index(rank) if rank in analysis.facts.ranks else found.rank < 0
        if mine.any():
            ready[number] = float(np.maximum(found.wait_end_ns - found.made_ns, 0)[mine].mean())
            waited[number] = float((found.wait_end_ns - found.wait_start_ns)[mine].mean())
    return ready, waited


def _matched(analysis: Analysis) -> Loading | None:
    if not analysis.facts.steps.count:
        return None
    found = analysis.facts.loading
    return found if len(found) else None


def queue(analysis: Analysis, theme: str = "light") -> Figure | None:
    """How many batches lie ready when the training asks for one, by step; None where batches and waits cannot be matched."""
    found = _matched(analysis)
    if found is None:
        return None
    facts = analysis.facts
    depth_of: dict[int, np.ndarray] = {}
    for row in range(len(facts.ranks)):
        mine = found.rank == row
        if not mine.any():
            continue
        made, taken = np.sort(found.made_ns[mine]), np.sort(found.wait_end_ns[mine])
        asked = np.searchsorted(found.wait_start_ns[mine], facts.steps.start_ns[row], side="left")
        at = found.wait_start_ns[mine][np.minimum(asked, mine.sum() - 1)]
        depth_of[row] = np.searchsorted(made, at, side="right") - np.searchsorted(taken, at, side="right")
    data, width = [], 1
    for number, row in enumerate(sorted(depth_of, key=lambda row: float(depth_of[row].mean()))[:MAX_LINES]):
        depth, width = in_columns(depth_of[row])
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"rank {facts.ranks[row]}",
                "x": steps_axis(analysis, width),
                "y": np.round(np.maximum(depth, 0), 2).tolist(),
                "line": {"color": LINES[number % len(LINES)], "width": 1.5},
            }
        )
    title = "step" if width == 1 else f"step (means of {width})"
    return {
        "data": data,
        "layout": layout(
            theme,
            height=220,
            showlegend=True,
            xaxis={"title": {"text": title}, **whole_steps(facts.steps.count)},
            yaxis={"title": {"text": "batches ready"}, "rangemode": "tozero", "tickformat": "d"},
        ),
    }


def workers(analysis: Analysis, loading: pd.DataFrame, rank: int, theme: str = "light") -> Figure | None:
    """The loop's waits and every worker's batches, for a few steps in the middle of the run; None where there are no steps."""
    facts = analysis.facts
    if rank not in facts.ranks or not facts.steps.count:
        return None
    row = facts.ranks.index(rank)
    first = max(facts.steps.count // 2 - GANTT_STEPS // 2, 0)
    last = min(first + GANTT_STEPS, facts.steps.count) - 1
    begin, end = int(facts.steps.start_ns[row, first]), int(facts.steps.end_ns[row, last])
    stops = loading["start_ns"] + loading["dur_ns"]
    mine = loading[(loading["rank"] == rank) & (loading["start_ns"] < end) & (stops > begin)]
    if mine.empty:
        return None
    data: list[dict[str, Any]] = []
    for spans, label, colour, width in (
        (waits_in(mine), "the training waits", "collective", 0.9),
        (mine[mine["name"] == DATA_FETCH], "makes a batch", "other", 0.9),
        (mine[mine["name"] == DATASET], "dataset", "data", 0.5),
        (mine[mine["name"] == COLLATE], "collate", "fusion", 0.5),
    ):
        of_name = spans.head(MAX_MARKS)
        if of_name.empty:
            continue
        low = np.maximum(of_name["start_ns"].to_numpy(), begin)
        high = np.minimum((of_name["start_ns"] + of_name["dur_ns"]).to_numpy(), end)
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": label,
                "y": [clean(str(lane)) for lane in of_name["lane"]],
                "base": np.round((low - begin) / 1e6, 4).tolist(),
                "x": np.round((high - low) / 1e6, 4).tolist(),
                "width": width,
                "marker": {"color": COLOURS[colour]},
                "hovertemplate": "%{y}: %{x:.2f} ms<extra>%{fullData.name}</extra>",
            }
        )
    if not data:
        return None
    lanes = sorted({str(lane) for trace in data for lane in trace["y"]}, key=_in_order)
    numbers = facts.steps.numbers
    return {
        "data": data,
        "layout": layout(
            theme,
            barmode="overlay",
            height=110 + 24 * len(lanes),
            xaxis={"title": {"text": f"ms since step {numbers[first]} began"}, "range": [0, (end - begin) / 1e6]},
            yaxis={"autorange": "reversed", "type": "category", "categoryarray": lanes, "categoryorder": "array"},
        ),
    }


def _in_order(lane: str) -> tuple[bool, int, str]:
    """The loop first, then workers by number."""
    digits = "".join(letter for letter in lane if letter.isdigit())
    return bool(digits), int(digits[:9] or 0), lane
