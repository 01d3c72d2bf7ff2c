"""Finds the looks of a trace: at training threads, at data loader workers, and at other threads of the ranks' processes."""

import json
from typing import Any, Final

import numpy as np
import pandas as pd

from ...timeline.model.code_spans import OWN, CodeSpan, parse_code_span
from ...timeline.model.trace import Trace
from ...timeline.vocabulary import Category, LaneKind
from .arrays import Floats, Integers, IntMatrix, Mask
from .breakdown import PARTS, Breakdown
from .code import MIN_LOOKS, CodeLooks
from .steps import Steps

#: Two looks that are further apart have nothing to do with each other.
MAX_GAP_NS: Final = 10e9
#: Found so many times as often as it runs, a thread waits where it is.
OFTEN_AS_RUN: Final = 1.5
_MAX_TEXT: Final = 80
_MAX_ARGS: Final = 4096
#: A line that is seen so often and was not counted is not counted later.
_MAX_UNTIL_COUNTED: Final = 500
_MAX_COUNT: Final = 10**12
_OTHER: Final = PARTS.index(str(Category.OTHER))


def find_worker_looks(trace: Trace, steps: Steps, breakdown: Breakdown) -> CodeLooks | None:
    """The looks at data loader workers while they make batches, all of part `data`; None where nobody looked at them."""
    found = _since_the_first_step(trace, steps, LaneKind.WORKER_CODE)
    if found is None:
        return None
    spans, rows = found
    data = str(Category.DATA)
    return _made(
        trace,
        spans,
        row=rows,
        step=np.zeros(len(rows), np.int64),
        part=np.full(len(rows), PARTS.index(data)),
        ns=np.ones(len(rows)),
        part_ns={data: breakdown.parts_ns[data]},
    )


def find_thread_looks(trace: Trace, steps: Steps) -> CodeLooks | None:
    """The looks at other threads of the ranks' processes, all of part `other`, which is what they ran of each step (mean).

    None where none was busy, or nobody looked.
    """
    found = _since_the_first_step(trace, steps, LaneKind.THREAD_CODE)
    if found is None:
        return None
    spans, rows = found
    ran_ns = spans["dur_ns"].to_numpy().astype(float)
    by_rank = np.bincount(rows, ran_ns, len(steps.ranks)) / steps.count
    ran_ns = np.where(_are_waits(trace, steps, spans, rows), 0.0, ran_ns)
    return _made(
        trace,
        spans,
        row=rows,
        step=np.zeros(len(rows), np.int64),
        part=np.full(len(rows), _OTHER),
        ns=ran_ns,
        part_ns={PARTS[_OTHER]: np.repeat(by_rank.astype(np.int64)[:, None], steps.count, axis=1)},
    )


def _are_waits(trace: Trace, steps: Steps, spans: pd.DataFrame, rows: Integers) -> Mask:
    """Which looks at busy threads found them waiting after they had run, as in time.sleep: bool[look].

    A thread that runs for a tenth of the time is found running in a tenth of all looks: a place where it is found much more often
    is where it waits.
    """
    all_looks = _since_the_first_step(trace, steps, LaneKind.CODE)
    moments = np.zeros(len(steps.ranks)) if all_looks is None else np.bincount(all_looks[1], minlength=len(steps.ranks))
    ends_ns = spans["start_ns"].to_numpy() + spans["dur_ns"].to_numpy()
    place = spans["name"].cat.codes.to_numpy()
    waits = np.zeros(len(spans), bool)
    for row in np.unique(rows).tolist():
        mine = rows == row
        ratio = float(spans["dur_ns"].to_numpy()[mine].sum()) / max(
            float(ends_ns[mine].max() - steps.start_ns[row, 0]), 1.0
        )
        often = np.bincount(place[mine]) > OFTEN_AS_RUN * ratio * moments[row] + MIN_LOOKS
        waits[mine] = often[place[mine]]
    return waits


def _since_the_first_step(trace: Trace, steps: Steps, kind: LaneKind) -> tuple[pd.DataFrame, Integers] | None:
    """The looks of a kind since the first analysed step of their ranks, and the rows of those; None if there are none."""
    spans = trace.spans[trace.spans["lane_kind"] == str(kind)]
    if spans.empty or not steps.count:
        return None
    rows = np.searchsorted(np.array(steps.ranks), spans["rank"].to_numpy())
    rows = np.minimum(rows, len(steps.ranks) - 1)
    is_known = (np.array(steps.ranks)[rows] == spans["rank"].to_numpy()) & (
        spans["start_ns"].to_numpy() >= steps.start_ns[rows, 0]
    )
    return (spans[is_known], rows[is_known]) if is_known.any() else None


def find_looks(trace: Trace, steps: Steps, breakdown: Breakdown) -> CodeLooks | None:
    """The looks of a trace at training threads; None where it has none, or does not say which part of a step was when."""
    spans = trace.spans[trace.spans["lane_kind"] == str(LaneKind.CODE)]
    if spans.empty or not steps.count or not breakdown.moments or breakdown.on_device:
        return None
    pieces = []
    ranks = spans["rank"].to_numpy()
    order = np.argsort(ranks, kind="stable")
    begins, ends = (np.searchsorted(ranks[order], steps.ranks, side=side) for side in ("left", "right"))
    for row in range(len(steps.ranks)):
        mine = order[begins[row] : ends[row]]
        at_ns = spans["start_ns"].to_numpy()[mine]
        gap_ns = np.diff(at_ns, prepend=at_ns[:1]).astype(float)
        # A recording that was paused, or a job that was stopped for a while.
        gap_ns[gap_ns > MAX_GAP_NS] = 0.0
        column = np.searchsorted(steps.start_ns[row], at_ns, side="right") - 1
        inside = (column >= 0) & (at_ns < steps.end_ns[row][np.maximum(column, 0)])
        mine, at_ns, gap_ns, column = mine[inside], at_ns[inside], gap_ns[inside], column[inside]
        part = np.full(len(mine), _OTHER)
        for name, moments in breakdown.moments[row].items():
            if len(moments):
                before = np.searchsorted(moments[:, 0], at_ns, side="right") - 1
                part[(before >= 0) & (at_ns < moments[np.maximum(before, 0), 1])] = PARTS.index(name)
        pieces.append((np.full(len(mine), row), column, part, mine, gap_ns))
    row_of, column_of, part_of, number_of, gap_of = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    return _made(
        trace,
        spans.iloc[number_of],
        row=row_of,
        step=column_of,
        part=part_of,
        ns=gap_of,
        part_ns=dict(breakdown.parts_ns),
    )


def _made(
    trace: Trace,
    spans: pd.DataFrame,
    *,
    row: Integers,
    step: Integers,
    part: Integers,
    ns: Floats,
    part_ns: dict[str, IntMatrix],
) -> CodeLooks:
    """Looks, one for each of the spans; those whose name tells no place are left out."""
    names = spans["name"].cat.remove_unused_categories()
    told = [parse_code_span(name) for name in names.cat.categories]
    place = names.cat.codes.to_numpy().astype(np.int64)
    is_known = np.array([one is not None for one in told], bool)[place]
    first, newest = _args(trace, spans, names)
    return CodeLooks(
        row=row[is_known],
        step=step[is_known],
        part=part[is_known],
        ns=ns[is_known],
        place=place[is_known],
        is_input=(spans["category"] == str(Category.DATA)).to_numpy()[is_known],
        places=tuple(CodeSpan("", 0, "", OWN) if one is None else one for one in told),
        texts=tuple(_text(args.get("text")) for args in newest),
        counts=tuple((*_counts(late), _counts(early)[0]) for early, late in zip(first, newest, strict=True)),
        part_ns=part_ns,
    )


def _args(trace: Trace, spans: pd.DataFrame, names: pd.Series) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What the looks at each place tell of it: when its line was counted first, and the newest."""
    rows = spans["args_row"].to_numpy()
    by_place = [np.flatnonzero(names.cat.codes.to_numpy() == code) for code in range(len(names.cat.categories))]
    first = []
    for numbers in by_place:
        told = (_decoded(trace, int(rows[number])) for number in numbers[:_MAX_UNTIL_COUNTED])
        first.append(next((args for args in told if "times" in args), {}))
    return first, [_decoded(trace, int(rows[numbers[-1]])) for numbers in by_place]


def _decoded(trace: Trace, args_row: int) -> dict[str, Any]:
    if args_row < 0:
        return {}
    try:
        args = json.loads(trace.raw_args[args_row][:_MAX_ARGS] or b"{}")
    except ValueError:
        return {}
    return args if isinstance(args, dict) else {}


def _text(told: object) -> str:
    return " ".join(told.split())[:_MAX_TEXT] if isinstance(told, str) else ""


def _counts(args: dict[str, Any]) -> tuple[int, int, int]:
    times, nodes, of_nodes = (_count(args.get(key)) for key in ("times", "graph_nodes", "of_graph_nodes"))
    return times, nodes, of_nodes


def _count(told: object) -> int:
    return told if isinstance(told, int) and 0 <= told < _MAX_COUNT else 0
