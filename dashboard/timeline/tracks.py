"""What lies over and between the rows: counters, steps and the critical path, as a screen can show them."""

from typing import Any, Final

import numpy as np

from ...collector.model.blame import OWN_WORK
from ...timeline.commands.arguments import clean
from ...timeline.vocabulary import LaneKind
from .run import Run

#: Steps and counters that are sent.
MAX_STEPS: Final = 400
MAX_COUNTERS: Final = 2000
MAX_NAME: Final = 200


def counters(run: Run) -> list[dict[str, Any]]:
    """The counters there are."""
    described = []
    for rank, name, _, values in run.counters[:MAX_COUNTERS]:
        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
        described.append({"rank": rank, "name": clean(name)[:MAX_NAME], "low": low, "high": high})
    return described


def counter(run: Run, number: int, low_ns: int, high_ns: int, columns: int) -> list[list[float]]:
    """A counter between two times: [time, lowest, highest value] of each column with a value, and of the last one before.

    Raises:
        IndexError: there is no such counter.
    """
    if not 0 <= number < min(len(run.counters), MAX_COUNTERS):
        raise IndexError(number)
    _, _, ts, values = run.counters[number]
    first = max(int(np.searchsorted(ts, low_ns, side="left")) - 1, 0)
    last = int(np.searchsorted(ts, high_ns, side="right"))
    ts, values = ts[first:last], values[first:last]
    kept = np.isfinite(values)
    ts, values = ts[kept], values[kept]
    if not len(ts):
        return []
    column = np.clip((ts - low_ns) * columns // max(high_ns - low_ns, 1), -1, columns)
    starts = np.flatnonzero(np.concatenate(([True], column[1:] != column[:-1])))
    low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    return [[int(at), float(a), float(b)] for at, a, b in zip(ts[starts], low, high, strict=True)]


def steps(run: Run, low_ns: int, high_ns: int) -> dict[str, Any]:
    """The steps that reach into a stretch of time; of too many only how many they are."""
    numbers, low, high = run.steps
    first = int(np.searchsorted(np.maximum.accumulate(high), low_ns, side="right")) if len(high) else 0
    last = int(np.searchsorted(low, high_ns, side="left"))
    shown = slice(first, last) if last - first <= MAX_STEPS else slice(0, 0)
    return {
        "count": max(last - first, 0),
        "total": len(numbers),
        "numbers": numbers[shown].tolist(),
        "low_ns": low[shown].tolist(),
        "high_ns": high[shown].tolist(),
    }


def path(run: Run, low_ns: int, high_ns: int, columns: int) -> list[list[Any]]:
    """The critical path between two times: [row, start, end, why, operation] of each stretch.

    Stretches too narrow to see are joined with what follows them on the screen, which keeps the longest of them.
    """
    table = run.path
    if table is None:
        return []
    start, end = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    first, last = int(np.searchsorted(end, low_ns, side="right")), int(np.searchsorted(start, high_ns, side="left"))
    rank, why, operation = (table[name].to_numpy()[first:last] for name in ("rank", "why", "operation"))
    start, end = start[first:last], end[first:last]
    if not len(start):
        return []
    column = np.clip((start - low_ns) * columns // max(high_ns - low_ns, 1), 0, columns)
    groups = np.flatnonzero(np.concatenate(([True], column[1:] != column[:-1])))
    bounds = np.append(groups[1:], len(start))
    drawn = []
    for begin, stop in zip(groups.tolist(), bounds.tolist(), strict=True):
        best = begin + int(np.argmax(end[begin:stop] - start[begin:stop]))
        kind = LaneKind.COMPUTE if why[best] == OWN_WORK else LaneKind.COMMUNICATION
        drawn.append(
            [
                run.rows.row_of(int(rank[best]), kind),
                int(start[begin]),
                int(end[stop - 1]),
                str(why[best]),
                clean(str(operation[best]))[:MAX_NAME],
            ]
        )
    return drawn
