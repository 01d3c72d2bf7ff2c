"""Steps of a shard of which only sums are told (`tlkit_steps`; see sampled_format.py)."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ..model.step_loads import LOADS, METERED, RAN
from ..model.step_sums import PARTS, WAIT
from ..vocabulary import (
    BACKWARD,
    DATA_WAIT,
    FORWARD,
    H2D_COPY,
    HOST_CORES,
    HOST_CPU,
    OPTIMIZER_STEP,
    SYNCHRONIZE,
    Category,
    LaneKind,
)
from .tlkit_events import integer

#: Longer than any step; what is beyond it is no length.
_MAX_US: Final = 1 << 45
_US: Final = 1000

Sums = dict[str, np.ndarray]
"""Columns of STEP_SUM_COLUMNS without the rank, times on the shard's clock."""

#: What sums can show; what communication does meanwhile they cannot.
KNOWN_OF_SUMS: Final = frozenset({Category.OTHER, *(Category(part) for part in PARTS if part != WAIT)})

#: How the spans are called that stand for the parts, in the order of a step.
_SPANS: Final = (
    (str(Category.DATA), DATA_WAIT, LaneKind.DATA),
    (str(Category.H2D), H2D_COPY, LaneKind.COMPUTE),
    (str(Category.FORWARD), FORWARD, LaneKind.COMPUTE),
    (str(Category.BACKWARD), BACKWARD, LaneKind.COMPUTE),
    (WAIT, SYNCHRONIZE, LaneKind.COMPUTE),
    (str(Category.OPTIMIZER), OPTIMIZER_STEP, LaneKind.COMPUTE),
    (str(Category.CHECKPOINT), "CHECKPOINT", LaneKind.COMPUTE),
)
_NAMES: Final = [name for _, name, _ in _SPANS]
_LANES: Final = [str(LaneKind.COMPUTE), str(LaneKind.DATA)]
_CATEGORIES: Final = [str(category) for category in Category]
_LANE_OF_SPAN: Final = np.array([_LANES.index(str(lane)) for *_, lane in _SPANS], np.int8)
_CATEGORY_OF_SPAN: Final = np.array(
    [_CATEGORIES.index(str(Category.OTHER) if part == WAIT else part) for part, *_ in _SPANS], np.int8
)


def read_sums(told: Sequence[tuple[int, dict[str, Any]]]) -> tuple[Sums, int]:
    """The steps that these events tell, and how many events tell nothing.

    Args:
        told: time (ns) and args of each event.
    """
    numbers, table, load, bad = _read_alike(told) or _read_each(told)
    return _columns(numbers, table, load), bad


def _columns(numbers: np.ndarray, table: np.ndarray, load: np.ndarray) -> Sums:
    sums: Sums = {"step": numbers, "start_ns": table[:, 0], "end_ns": table[:, 1]}
    for position, part in enumerate(PARTS):
        sums[f"{part}_ns"] = table[:, 2 + position]
    sums.update({name: load[:, position] for position, name in enumerate(LOADS)})
    return sums


def read_together(told: Sequence[Sequence[tuple[int, dict[str, Any]]]]) -> tuple[Sums, np.ndarray, list[int]]:
    """What `read_sums` reads of each of several shards, one behind the other.

    Returns:
        The steps of all, how many of them each shard tells (int64[shard]), and how many events of each tell nothing.
    """
    at_once = _read_alike([event for events in told for event in events])
    if at_once is None:
        each = [read_sums(events) for events in told]
        sums = {name: np.concatenate([part[name] for part, _ in each]) for name in each[0][0]}
        return sums, np.array([len(part["step"]) for part, _ in each], np.int64), [bad for _, bad in each]
    counts = [sum(len(args["us"]) for _, args in events) for events in told]
    return _columns(*at_once[:3]), np.array(counts, np.int64), [0] * len(told)


_Read = tuple[np.ndarray, np.ndarray, np.ndarray, int]
"""Numbers of steps; start, end and parts of each, ns; what each got of the processor, ns; events that tell nothing."""


def _read_each(told: Sequence[tuple[int, dict[str, Any]]]) -> _Read:
    """Event by event, since some may be damaged."""
    numbers, parts, loads = [np.zeros(0, np.int64)], [np.zeros((0, 2 + len(PARTS)), np.int64)], []
    bad = 0
    for at_ns, args in told:
        rows = _rows_of(args)
        if rows is None:
            bad += 1
            continue
        parts.append(_times_of(rows, args["parts"], np.full(len(rows), at_ns), np.zeros(len(rows), np.int64)))
        loads.append(_loads_of(args, len(rows)))
        numbers.append(integer(args.get("first"), 0) + np.arange(len(rows)))
    load = np.concatenate(loads) if loads else np.zeros((0, len(LOADS)), np.int64)
    return np.concatenate(numbers).astype(np.int64), np.concatenate(parts), load, bad


def _read_alike(told: Sequence[tuple[int, dict[str, Any]]]) -> _Read | None:
    """All events at once, as `_read_each` reads them; None unless they have the same parts and all make sense.

    A thousand ranks tell twenty events each of a window of minutes: one by one, arrays of eight rows take most of the time.
    """
    names: Any = told[0][1].get("parts") if told else None
    lists = [args.get("us") for _, args in told if args.get("parts") == names]
    if len(lists) < len(told) or not told or not all(isinstance(rows, list) and rows for rows in lists):
        return None
    rows = _rows_of({"parts": names, "us": [row for rows in lists for row in rows or ()]})
    load = _loads_alike([args.get("load") for _, args in told], [len(each or ()) for each in lists])
    if rows is None or load is None:
        return None
    counts = np.array([len(each or ()) for each in lists], np.int64)
    first_rows = np.cumsum(counts) - counts
    taken = rows[:, 0] + rows[:, 1]
    before = (np.cumsum(taken) - taken)[first_rows]
    at_ns = np.array([at_ns for at_ns, _ in told], np.int64)
    firsts = np.array([integer(args.get("first"), 0) for _, args in told], np.int64)
    numbers = np.repeat(firsts - first_rows, counts) + np.arange(len(rows))
    return numbers, _times_of(rows, names, np.repeat(at_ns, counts), np.repeat(before, counts)), load, 0


def _times_of(rows: np.ndarray, names: Sequence[Any], at_ns: np.ndarray, before_us: np.ndarray) -> np.ndarray:
    """Start, end and parts of steps, ns: int64[step, 2 + PARTS].

    Args:
        rows: as `_rows_of` gives them.
        names: of the parts in `rows`.
        at_ns: when the event of each step begins.
        before_us: what the rows before that event add up to.
    """
    times = np.zeros((len(rows), 2 + len(PARTS)), np.int64)
    times[:, 1] = at_ns + (np.cumsum(rows[:, 0] + rows[:, 1]) - before_us) * _US
    times[:, 0] = times[:, 1] - rows[:, 1] * _US
    for column, name in enumerate(names):
        if name in PARTS:
            times[:, 2 + PARTS.index(name)] = rows[:, 2 + column] * _US
    return times


def _loads_alike(told: Sequence[Any], counts: Sequence[int]) -> np.ndarray | None:
    """`_loads_of` of all events at once; None unless none tells of them, or all in the same form."""
    if all(each is None for each in told):
        return np.full((sum(counts), len(LOADS)), -1, np.int64)
    if not all(isinstance(each, dict) and isinstance(each.get("rows"), list) for each in told):
        return None
    first = told[0]
    if not all(
        (each.get("parts"), each.get("unit_us")) == (first.get("parts"), first.get("unit_us"))
        and len(each["rows"]) == count
        for each, count in zip(told, counts, strict=True)
    ):
        return None
    load = _loads_of({"load": {**first, "rows": [row for each in told for row in each["rows"]]}}, sum(counts))
    return load if (load[:, 0] >= 0).all() else None


def _loads_of(args: dict[str, Any], count: int) -> np.ndarray:
    """What each step of an event got of the processor: int64[step, LOADS], ns; -1 where that is not told, or makes no sense."""
    unknown = np.full((count, len(LOADS)), -1, np.int64)
    told = args.get("load")
    if not isinstance(told, dict) or told.get("parts") != [str(part) for part in METERED]:
        return unknown
    unit_us = integer(told.get("unit_us"), 0)
    try:
        rows = np.array(told.get("rows"), dtype=np.int64)
    except (ValueError, TypeError, OverflowError):
        return unknown
    if rows.ndim != 2 or rows.shape not in {(count, RAN), (count, len(LOADS))}:  # noqa: PLR2004  a table of rows
        return unknown
    if not 0 < unit_us < _MAX_US or rows.min() < 0 or rows.max() > _MAX_US // unit_us:
        return unknown
    unknown[:, : rows.shape[1]] = rows * (unit_us * _US)
    return unknown


def host_loads(told: Sequence[tuple[int, dict[str, Any]]]) -> list[tuple[str, int, float]]:
    """How busy the host was: name, time (ns) and value of counters that stand for it, two an event."""
    found = []
    for at_ns, args in told:
        host = args.get("host")
        for name in (HOST_CPU, HOST_CORES):
            value = host.get(name) if isinstance(host, dict) else None
            if isinstance(value, (int, float)) and 0 <= value < _MAX_US:
                found.append((name, at_ns, float(value)))
    return found


def _rows_of(args: dict[str, Any]) -> np.ndarray | None:
    """Gap, length and parts of each step, in microseconds: int64[step, 2 + parts]; None for what makes no sense."""
    names, rows = args.get("parts"), args.get("us")
    if not isinstance(names, list) or not isinstance(rows, list) or not rows:
        return None
    try:
        table = np.array(rows, dtype=np.int64)
    except (ValueError, TypeError, OverflowError):
        return None
    if table.ndim != 2 or table.shape[1] != 2 + len(names):  # noqa: PLR2004  a table of rows
        return None
    if (
        np.abs(table).max() > _MAX_US
        or table[:, 1:].min() < 0
        or (table[:, 2:].sum(axis=1) > table[:, 1] + len(names)).any()
    ):
        return None
    return table


def with_parts(sums: Sums) -> np.ndarray:
    """Of which steps more is told than how long they took: bool[step]."""
    told: np.ndarray = np.any([sums[f"{part}_ns"] > 0 for part in PARTS], axis=0)
    return told


def lay_out(sums: Sums, shard: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    """Spans that stand for the sums, one part behind the other: columns of SPAN_COLUMNS without the rank.

    Their lengths are what was recorded; where they stand within the step is not known.

    Args:
        shard: the number of the shard that tells each step, int64[step].

    Returns:
        The columns, in order of shards and then of time, and the number of each span's shard.
    """
    lengths = np.stack([sums[f"{part}_ns"] for part, *_ in _SPANS])
    starts = sums["start_ns"] + np.cumsum(lengths, axis=0) - lengths
    number, step = np.nonzero(lengths > 0)
    order = np.lexsort((starts[number, step], shard[step]))
    number, step = number[order], step[order]
    spans = {
        "lane": (_LANE_OF_SPAN[number].astype(np.int32), _LANES),
        "lane_kind": (_LANE_OF_SPAN[number], _LANES),
        "category": (_CATEGORY_OF_SPAN[number], _CATEGORIES),
        "name": (number.astype(np.int32), _NAMES),
        "start_ns": starts[number, step],
        "dur_ns": lengths[number, step],
        "args_row": np.full(len(order), -1, np.int64),
    }
    return spans, shard[step]
