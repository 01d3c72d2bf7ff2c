"""Who is to blame for each nanosecond of each step: the critical path through all ranks, as a table.

The walk begins where the last rank ends and goes back in time.  A rank that works is to blame.  Where it waits, what it waits for
is: the bytes that move, the operation in front that holds up the queue, the negotiation.  From the moment when the last member
asked for the operation the walk goes on at that member, at what it did before it asked.  What lies on the path makes the run as
long as it is; anything else could take a little longer without anybody noticing.  So every nanosecond is blamed once, and
the rows of a step sum to the step of the job.

Without a common clock the same table comes from frontier accounting (parts_graph.py).
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.vocabulary import Category, LaneKind
from .breakdown import EXPOSED, IDLE, PARTS, Breakdown
from .graph import ON_BATCH, Graph
from .parts_graph import ORDER, frontier
from .steps import Steps

COLUMNS: Final = ("step", "rank", "track", "category", "name", "why", "ns")

#: Reasons, as they stand in the column `why`.
OWN_WORK: Final = "own work"
MOVES_BYTES: Final = "moves bytes"
QUEUED: Final = "queued behind another operation"
NEGOTIATES: Final = "negotiates"
WOKE_LATE: Final = "resumes after the wait"
WAITS: Final = "waits"
"""For what, the trace does not tell."""
NO_BATCH: Final = "no batch is ready"

_DATA: Final = str(Category.DATA)
_WAITS_FOR: Final = {str(Category.NEGOTIATE): NEGOTIATES, str(Category.QUEUE): NEGOTIATES, IDLE: WAITS}


@dataclass(slots=True)
class _Path:
    """Stretches of time on the path: parallel lists."""

    row: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    operation: list[int] = field(default_factory=list)

    def add(self, row: int, start: int, end: int, why: str, operation: int = -1) -> None:
        if end > start:
            self.row.append(row)
            self.start.append(start)
            self.end.append(end)
            self.why.append(why)
            self.operation.append(operation)


def find_blame(graph: Graph) -> pd.DataFrame:
    """The table of COLUMNS: `step` by number, `rank`, `track` (LaneKind), `category` (PARTS), `name` and `why`, `ns` (int).

    The rows of a step sum to the step of the job (Steps.job_ns).
    """
    steps = graph.steps
    if not steps.count:
        return pd.DataFrame({name: [] for name in COLUMNS})
    path = _cut(_walk(graph), steps)
    return _table(graph, path)


def find_path(graph: Graph) -> pd.DataFrame:
    """The critical path itself, in order of time: one row a stretch, which is where the step's time goes at that moment.

    Columns: `rank`, `start_ns`, `end_ns`, `why`, and `operation`, what is waited for in words ("" for own work).
    """
    path = _cut(_walk(graph), graph.steps) if graph.steps.count else _Path()
    table = pd.DataFrame(
        {
            "rank": np.array(graph.steps.ranks, dtype=np.int64)[np.array(path.row, dtype=np.int64)],
            "start_ns": np.array(path.start, dtype=np.int64),
            "end_ns": np.array(path.end, dtype=np.int64),
            "why": path.why,
            "operation": [_name_of(graph, number) if number >= 0 else "" for number in path.operation],
        }
    )
    return table.sort_values("start_ns", kind="stable", ignore_index=True)


def blame_of_parts(steps: Steps, breakdown: Breakdown) -> pd.DataFrame:
    """The same table by frontier accounting, for ranks without a common clock."""
    if not steps.count:
        return pd.DataFrame({name: [] for name in COLUMNS})
    waiting = [part for part in EXPOSED if part != IDLE or not breakdown.on_device]
    own = {part: breakdown.parts_ns[part] for part in ORDER}
    if breakdown.on_device:
        own["other"] = own["other"] + breakdown.parts_ns[IDLE]
    gains, who = frontier(own)
    rows = [
        pd.DataFrame(
            {
                "step": steps.numbers,
                "rank": np.array(steps.ranks)[who[position]],
                "track": str(LaneKind.COMPUTE),
                "category": part,
                "name": "",
                "why": OWN_WORK,
                "ns": gains[position],
            }
        )
        for position, part in enumerate(ORDER)
    ]
    longest = np.sum(list(own.values()), axis=0).argmax(axis=0)
    for part in waiting:
        spent = breakdown.parts_ns[part][longest, np.arange(steps.count)]
        rows.append(
            pd.DataFrame(
                {
                    "step": steps.numbers,
                    "rank": np.array(steps.ranks)[longest],
                    "track": str(LaneKind.COMMUNICATION),
                    "category": part,
                    "name": "",
                    "why": _WAITS_FOR.get(part, MOVES_BYTES),
                    "ns": spent,
                }
            )
        )
    table = pd.concat(rows, ignore_index=True)
    return table[table["ns"] > 0].sort_values(["step"], kind="stable", ignore_index=True)


def _walk(graph: Graph) -> _Path:
    """From the end of the last step back to the beginning of the first."""
    steps, path = graph.steps, _Path()
    waits = graph.waits_of_rank
    starts = [graph.wait_start_ns[rows].tolist() for rows in waits]
    row = int(np.argmax(steps.end_ns[:, -1]))
    at, begin = int(steps.end_ns[row, -1]), int(steps.start_ns[:, 0].max())
    turns = 4 * (len(graph.wait_segment) + len(graph.operations)) + 100
    while at > begin and turns:
        turns -= 1
        position = bisect_left(starts[row], at) - 1
        if position < 0:
            path.add(row, begin, at, OWN_WORK)
            break
        wait = int(waits[row][position])
        wait_start, wait_end = max(int(graph.wait_start_ns[wait]), begin), min(int(graph.wait_end_ns[wait]), at)
        if wait_end <= begin:
            path.add(row, begin, at, OWN_WORK)
            break
        path.add(row, wait_end, at, OWN_WORK)
        if graph.wait_kind[wait] == ON_BATCH:
            made = int(np.clip(graph.loading.made_ns[graph.wait_target[wait]], wait_start, wait_end))
            path.add(row, made, wait_end, WOKE_LATE)
            path.add(row, wait_start, made, NO_BATCH)
            at = wait_start
        else:
            row, at = _through(graph, path, row, (wait_start, wait_end), int(graph.wait_target[wait]))
    return path


def _through(graph: Graph, path: _Path, row: int, wait: tuple[int, int], operation: int) -> tuple[int, int]:
    """What a wait waited for; where the walk goes on: (row, time)."""
    operations = graph.operations
    start, at = wait

    def back_to(moment: int, why: str) -> None:
        """Blame the time since `moment`, within the wait."""
        nonlocal at
        moment = min(max(moment, start), at)
        path.add(row, moment, at, why, operation)
        at = moment

    back_to(int(operations.end_ns[operation]), WOKE_LATE)
    while at > start:
        back_to(int(operations.start_ns[operation]), MOVES_BYTES)
        before = int(operations.before[operation])
        if operations.chained[operation] and before >= 0:
            back_to(int(operations.end_ns[before]), QUEUED)
            operation = before
            continue
        ready, negotiated = int(operations.ready_ns[operation]), int(operations.negotiated_ns[operation])
        back_to(max(negotiated, ready), QUEUED)
        back_to(ready, NEGOTIATES)
        last = int(operations.last_rank[operation])
        if at > start and last != row:
            return last, at
        back_to(start, NEGOTIATES)
    return row, start


def _cut(path: _Path, steps: Steps) -> _Path:
    """The stretches, cut where steps of the job end; what lies between recorded steps belongs to none of them."""
    pauses = steps.pause_ns
    after = np.flatnonzero(pauses)
    resumed = (steps.end_ns.max(axis=0)[after - 1] + pauses[after]).tolist()
    bounds = sorted({*steps.end_ns.max(axis=0).tolist(), *resumed})
    paused = set(steps.end_ns.max(axis=0)[after - 1].tolist())
    cut = _Path()
    for row, start, end, why, operation in zip(path.row, path.start, path.end, path.why, path.operation, strict=True):
        first, last = bisect_right(bounds, start), bisect_left(bounds, end)
        edges = [start, *bounds[first:last], end]
        for low, high in pairwise(edges):
            if paused and bounds[max(bisect_right(bounds, low) - 1, 0)] in paused and low >= bounds[0]:
                continue
            cut.add(row, low, high, why, operation)
    return cut


def _table(graph: Graph, path: _Path) -> pd.DataFrame:
    """What happened in the stretches, added up."""
    steps = graph.steps
    row, start, end = (np.array(values, dtype=np.int64) for values in (path.row, path.start, path.end))
    why, operation = np.array(path.why, dtype=object), np.array(path.operation, dtype=np.int64)
    step = np.minimum(np.searchsorted(steps.end_ns.max(axis=0), start, side="right"), steps.count - 1)
    own = why == OWN_WORK
    tables = [_own_rows(graph, row[own], start[own], end[own], step[own])]
    category = np.array([_category_of(reason) for reason in why], dtype=object)
    names = np.array([*(_name_of(graph, number) for number in range(len(graph.operations))), ""], dtype=object)
    tables.append(
        pd.DataFrame(
            {
                "step": step,
                "rank": row,
                "track": np.where(category == _DATA, str(LaneKind.WORKER), str(LaneKind.COMMUNICATION)),
                "category": category,
                "name": names[operation],
                "why": why,
                "ns": end - start,
            }
        )[~own]
    )
    keys = list(COLUMNS[:-1])
    table = pd.concat(tables, ignore_index=True).groupby(keys, sort=False)["ns"].sum().reset_index()
    table["step"] = steps.numbers[table["step"].to_numpy(dtype=np.int64)]
    table["rank"] = np.array(steps.ranks)[table["rank"].to_numpy(dtype=np.int64)]
    return table.sort_values(["step", "ns"], ascending=[True, False], kind="stable", ignore_index=True)


def _own_rows(graph: Graph, row: np.ndarray, start: np.ndarray, end: np.ndarray, step: np.ndarray) -> pd.DataFrame:
    """Own work by part; of a stretch the rounding goes to its largest part, so that the parts sum to it."""
    parts = _passed(graph, row, end) - _passed(graph, row, start)
    whole = np.rint(parts).astype(np.int64)
    largest = whole.argmax(axis=1) if len(whole) else np.empty(0, dtype=np.int64)
    whole[np.arange(len(whole)), largest] += end - start - whole.sum(axis=1)
    stretch, part = np.nonzero(whole)
    return pd.DataFrame(
        {
            "step": step[stretch],
            "rank": row[stretch],
            "track": str(LaneKind.COMPUTE),
            "category": np.array(PARTS, dtype=object)[part],
            "name": "",
            "why": OWN_WORK,
            "ns": whole[stretch, part],
        }
    )


def _passed(graph: Graph, row: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """Own time by part that a rank has spent until each moment: float[n, len(PARTS)]."""
    until = np.concatenate((np.zeros((1, len(PARTS))), np.cumsum(graph.piece_ns, axis=0)))
    length = graph.piece_ns.sum(axis=1)
    spent = np.zeros((len(row), len(PARTS)))
    for number in np.unique(row):
        mine = row == number
        pieces = np.flatnonzero(graph.piece_rank == number)
        index = pieces[np.maximum(np.searchsorted(graph.piece_start_ns[pieces], moment[mine], side="right") - 1, 0)]
        inside = np.clip((moment[mine] - graph.piece_start_ns[index]) / np.maximum(length[index], 1.0), 0.0, 1.0)
        spent[mine] = until[index] + graph.piece_ns[index] * inside[:, None]
    return spent


def _category_of(why: str) -> str:
    return {
        MOVES_BYTES: str(Category.COLLECTIVE),
        QUEUED: str(Category.QUEUE),
        NEGOTIATES: str(Category.NEGOTIATE),
        WOKE_LATE: IDLE,
        NO_BATCH: _DATA,
    }.get(why, "other")


def _name_of(graph: Graph, operation: int) -> str:
    """What an operation is called in a sentence: kind, caller and the line that calls it."""
    operations = graph.operations
    caller, where = operations.caller[operation], operations.where[operation]
    return " ".join(text for text in (operations.kind[operation], caller and f"({caller})", where) if text)


def summarise_blame(blame: pd.DataFrame, steps: int) -> pd.DataFrame:
    """Which ranks and parts make the steps as long as they are.

    Args:
        blame: what `find_blame` returns.
        steps: how many steps were analysed.

    Returns:
        `rank`, `part`, `mean_ns` (of a step), `share` (of all time), `steps_ratio` (of the steps in which it is to blame);
        largest share first.
    """
    if blame.empty:
        return pd.DataFrame({name: [] for name in ("rank", "part", "mean_ns", "share", "steps_ratio")})
    groups = blame.groupby(["rank", "category"])
    table = groups.agg(mean_ns=("ns", "sum"), steps_ratio=("step", "nunique")).reset_index()
    table["share"] = table["mean_ns"] / max(float(table["mean_ns"].sum()), 1.0)
    table["mean_ns"] /= max(steps, 1)
    table["steps_ratio"] /= max(steps, 1)
    table = table.rename(columns={"category": "part"})
    ordered = table.sort_values("share", ascending=False, kind="stable", ignore_index=True)
    return ordered[["rank", "part", "mean_ns", "share", "steps_ratio"]]
