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


def read_sums(told: Sequence[tuple[int, dict[str, Any]]]) -> tuple[Sums, int]:
    """The steps that these events tell, and how many events tell nothing.

    Args:
        told: time (ns) and args of each event.
    """
    numbers, parts, loads = [], [], []
    bad = 0
    for at_ns, args in told:
        rows = _rows_of(args)
        if rows is None:
            bad += 1
            continue
        of_event = np.zeros((len(rows), 2 + len(PARTS)), np.int64)
        reached = np.cumsum(rows[:, 0] + rows[:, 1])
        of_event[:, 1] = at_ns + reached * _US
        of_event[:, 0] = of_event[:, 1] - rows[:, 1] * _US
        for column, name in enumerate(args["parts"]):
            if name in PARTS:
                of_event[:, 2 + PARTS.index(name)] = rows[:, 2 + column] * _US
        parts.append(of_event)
        loads.append(_loads_of(args, len(rows)))
        numbers.append(integer(args.get("first"), 0) + np.arange(len(rows)))
    table = np.concatenate(parts) if parts else np.zeros((0, 2 + len(PARTS)), np.int64)
    sums: Sums = {
        "step": np.concatenate(numbers).astype(np.int64) if numbers else np.zeros(0, np.int64),
        "start_ns": table[:, 0],
        "end_ns": table[:, 1],
    }
    for position, part in enumerate(PARTS):
        sums[f"{part}_ns"] = table[:, 2 + position]
    load = np.concatenate(loads) if loads else np.zeros((0, len(LOADS)), np.int64)
    sums.update({name: load[:, position] for position, name in enumerate(LOADS)})
    return sums, bad


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


def with_parts(sums: Sums) -> Sums:
    """Those steps of which more is told than how long they took."""
    told = np.any([sums[f"{part}_ns"] > 0 for part in PARTS], axis=0)
    return {name: values[told] for name, values in sums.items()}


def lay_out(sums: Sums) -> dict[str, Any]:
    """Spans that stand for the sums, one part behind the other: columns of SPAN_COLUMNS without the rank.

    Their lengths are what was recorded; where they stand within the step is not known.
    """
    names = [name for _, name, _ in _SPANS]
    lanes = [str(LaneKind.COMPUTE), str(LaneKind.DATA)]
    categories = [str(category) for category in Category]
    reached = sums["start_ns"].copy()
    columns: dict[str, list[np.ndarray]] = {key: [] for key in ("lane", "category", "name", "start_ns", "dur_ns")}
    for number, (part, _, lane) in enumerate(_SPANS):
        lengths = sums[f"{part}_ns"]
        there = lengths > 0
        category = str(Category.OTHER) if part == WAIT else part
        count = int(there.sum())
        columns["lane"].append(np.full(count, lanes.index(str(lane)), np.int32))
        columns["category"].append(np.full(count, categories.index(category), np.int8))
        columns["name"].append(np.full(count, number, np.int32))
        columns["start_ns"].append(reached[there])
        columns["dur_ns"].append(lengths[there])
        reached = reached + lengths
    joined = {key: np.concatenate(parts) for key, parts in columns.items()}
    order = np.argsort(joined["start_ns"], kind="stable")
    joined = {key: values[order] for key, values in joined.items()}
    return {
        "lane": (joined["lane"], lanes),
        "lane_kind": (joined["lane"].astype(np.int8), lanes),
        "category": (joined["category"], categories),
        "name": (joined["name"], names),
        "start_ns": joined["start_ns"],
        "dur_ns": joined["dur_ns"],
        "args_row": np.full(len(order), -1, np.int64),
    }
