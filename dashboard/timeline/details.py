"""One span: what it is, its args, what it is connected with, and its neighbours."""

import json
from typing import Any, Final

import numpy as np
import pandas as pd

from ...timeline.commands.arguments import clean
from ...timeline.errors import TlkitError
from ...timeline.vocabulary import LaneKind
from .run import Run
from .table import MAX_NAME, exposed_ns, name_of
from .times import Values, search

#: Characters of args that are read, of a value that is shown, and args that are shown.
MAX_ARGS: Final = 20_000
MAX_VALUE: Final = 600
MAX_KEYS: Final = 100
#: Arrows of a span.
MAX_FLOWS: Final = 200
#: Args in which our shards hold times of the rank's own clock.
_TIMES: Final = ("submitted", "negotiated", "arrivals")


def describe(run: Run, number: int) -> dict[str, Any]:
    """A span in full."""
    trace = run.trace
    span = trace.spans.iloc[number]
    rank, start_ns, dur_ns = int(span["rank"]), int(span["start_ns"]), int(span["dur_ns"])
    step = run.step_of(rank, start_ns)
    collective = _collective_of(run, span)
    return {
        "number": number,
        "row": run.rows.row_of_span(number),
        "rank": rank,
        "step": step,
        "lane": clean(str(span["lane"]))[:MAX_NAME],
        "name": name_of(str(span["name"]), step),
        "category": str(span["category"]),
        "start_ns": start_ns,
        "dur_ns": dur_ns,
        "exposed_ns": int(exposed_ns(run, np.array([number]))[0]),
        "args": _args(run, int(span["args_row"]), collective),
        "flows": _flows(run, number, span, collective)[:MAX_FLOWS],
    }


def neighbour(run: Run, row: int, at_ns: int, turn: int) -> int:
    """The span of a row at a moment, or the one nearest to it; with a turn of -1 or 1 the one before or after that.

    Returns:
        Its number; -1 in an empty row.
    """
    rows = run.rows
    if not 0 <= row < len(rows):
        return -1
    begin, end = int(rows.first[row]), int(rows.first[row + 1])
    if end <= begin:
        return -1
    place = max(_place(rows.start_ns, begin, end, at_ns, right=True) - 1, begin)
    if at_ns > rows.end_ns[place] and place + 1 < end and rows.start_ns[place + 1] - at_ns < at_ns - rows.end_ns[place]:
        place += 1
    number = int(rows.span[place])
    while turn and begin <= place + turn < end:
        place += turn
        if int(rows.span[place]) != number:  # pieces of a wait are one span
            return int(rows.span[place])
    return number


def _place(values: Values, begin: int, end: int, at_ns: int, *, right: bool) -> int:
    return int(search(values, np.array([begin]), np.array([end]), at_ns, right=right)[0])


def edge(run: Run, row: int, at_ns: int, within_ns: int) -> int:
    """The edge of a span of the row that is nearest to a moment, if one is so near; else the moment."""
    rows = run.rows
    if not 0 <= row < len(rows):
        return at_ns
    begin, end = int(rows.first[row]), int(rows.first[row + 1])
    best = at_ns
    for values in (rows.start_ns, rows.end_ns):
        place = _place(values, begin, end, at_ns, right=False)
        for candidate in values[max(place - 1, begin) : min(place + 1, end)].tolist():
            if abs(candidate - at_ns) <= within_ns and (best == at_ns or abs(candidate - at_ns) < abs(best - at_ns)):
                best = int(candidate)
    return best


def _args(run: Run, row: int, collective: pd.Series | None) -> list[list[Any]]:
    """Keys and values, as text; times of the run are numbers of ns, marked as such: [key, value, "ns" or ""]."""
    if row < 0:
        return []
    try:
        raw = run.trace.raw_args[row][:MAX_ARGS]
    except TlkitError as error:
        return [["", clean(str(error)), ""]]
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return [["", clean(raw.decode("utf-8", "replace"))[:MAX_VALUE], ""]]
    rows = []
    for key, value in list(found.items())[:MAX_KEYS]:
        in_run = None if collective is None or key not in _TIMES else _time_of_run(run, key, collective)
        if in_run is not None:
            rows += in_run
        else:
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            rows.append([clean(str(key))[:MAX_NAME], clean(shown)[:MAX_VALUE], ""])
    return rows


def _time_of_run(run: Run, key: str, collective: pd.Series) -> list[list[Any]] | None:
    """A time in args by the rank's own clock, as the table has it on the run's."""
    if key != "arrivals":
        at_ns = int(collective[f"{key}_ns"])
        return None if at_ns < 0 else [[key, at_ns, "ns"]]
    table = run.trace.arrivals
    mine = table[(table["seq"] == collective["seq"]) & (table["process_set"] == collective["process_set"])]
    return [
        [f"arrival of rank {int(row['rank'])}", int(row["arrival_ns"]), "ns"] for row in mine.to_dict("records")
    ] or None


def _collective_of(run: Run, span: pd.Series) -> pd.Series | None:
    """The collective that a span of communication executes, or that carries a tensor."""
    rank, start_ns, end_ns = int(span["rank"]), int(span["start_ns"]), int(span["start_ns"] + span["dur_ns"])
    table = run.trace.collectives
    if span["lane_kind"] == str(LaneKind.TENSOR):
        lives = run.trace.tensors
        life = lives[
            (lives["rank"] == rank)
            & (lives["name"] == span["lane"])
            & (lives["submitted_ns"] <= start_ns)
            & (lives["end_ns"] >= start_ns)
        ]
        if life.empty or int(life["seq"].iloc[0]) < 0:
            return None
        seq, process_set = int(life["seq"].iloc[0]), int(life["process_set"].iloc[0])
        mine = table[(table["rank"] == rank) & (table["seq"] == seq) & (table["process_set"] == process_set)]
    elif span["lane_kind"] == str(LaneKind.COMMUNICATION):
        mine = table[(table["rank"] == rank) & (table["start_ns"] < max(end_ns, start_ns + 1))]
        mine = mine[mine["start_ns"] + mine["dur_ns"] > start_ns]
    else:
        return None
    return None if mine.empty else mine.iloc[0]


def _flows(run: Run, number: int, span: pd.Series, collective: pd.Series | None) -> list[list[Any]]:
    """Arrows, each [row, time, row, time, words]."""
    rows = run.rows
    flows: list[list[Any]] = []
    if collective is not None:
        flows += _of_collective(run, collective)
        if span["lane_kind"] == str(LaneKind.TENSOR):
            here = rows.row_of_span(number)
            carrier = rows.row_of(int(span["rank"]), LaneKind.COMMUNICATION)
            flows.insert(0, [here, int(span["start_ns"]), carrier, int(collective["start_ns"]), "carried by"])
    flows += _of_launch(run, number, span)
    return flows


def _of_collective(run: Run, collective: pd.Series) -> list[list[Any]]:
    """From where its tensors were submitted to the collective on each rank; and from the last to arrive to the others."""
    table, rows = run.trace.collectives, run.rows
    if int(collective["seq"]) < 0:
        return []
    everywhere = table[(table["seq"] == collective["seq"]) & (table["process_set"] == collective["process_set"])]
    here = rows.row_of(int(collective["rank"]), LaneKind.COMMUNICATION)
    flows: list[list[Any]] = []
    for row in everywhere.head(MAX_FLOWS).to_dict("records"):
        rank = int(row["rank"])
        there = rows.row_of(rank, LaneKind.COMMUNICATION)
        if row["submitted_ns"] >= 0:
            asked = rows.row_of(rank, LaneKind.COMPUTE)
            flows.append([asked, int(row["submitted_ns"]), there, int(row["start_ns"]), "submitted"])
        if rank != int(collective["rank"]):
            flows.append([here, int(collective["start_ns"]), there, int(row["start_ns"]), f"the same on rank {rank}"])
    return flows


def _of_launch(run: Run, number: int, span: pd.Series) -> list[list[Any]]:
    """From the host's call to what it launched on the device."""
    if span["lane_kind"] not in {str(LaneKind.COMPUTE), str(LaneKind.COMMUNICATION)}:
        return []
    table, rows = run.launches(int(span["rank"])), run.rows
    mine = table[(table["start_ns"] == span["start_ns"]) & (table["launched_ns"] >= 0)]
    flows: list[list[Any]] = []
    for row in mine.head(1).to_dict("records"):
        lane = [at for at, name in enumerate(rows.lanes) if name == str(row["thread"])]
        on = np.flatnonzero((rows.ranks == span["rank"]) & np.isin(rows.lane, lane) & (rows.depth == 0))
        if len(on):
            there = rows.row_of_span(number)
            flows.append([int(on[0]), int(row["launched_ns"]), there, int(span["start_ns"]), "launched"])
    return flows
