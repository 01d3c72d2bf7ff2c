"""Counters of one of our shards: those that are events, and those that are told with sums of steps."""

import json
import math
from typing import Any

import numpy as np

from .tlkit_events import ShardEvents
from .tlkit_sums import host_loads


def make_counters(shard: ShardEvents) -> dict[str, Any]:
    """The columns of COUNTER_COLUMNS, without the rank."""
    events, (rows, values) = shard.events, _counted(shard)
    loads = host_loads(shard.told_sums)
    names = [*shard.names, *dict.fromkeys(name for name, *_ in loads if name not in shard.names)]
    return {
        "name": (np.append(events.name[rows], [names.index(name) for name, *_ in loads]).astype(np.int32), names),
        "ts_ns": np.append(events.start[rows], np.array([at_ns for _, at_ns, _ in loads], np.int64)),
        "value": np.append(values, [value for *_, value in loads]),
    }


def told_counters(shard: ShardEvents) -> list[tuple[str, int, float]]:
    """Name, time (ns) and value of each."""
    rows, values = _counted(shard)
    told = zip(rows.tolist(), values.tolist(), strict=True)
    counted = [(shard.names[shard.events.name[row]], int(shard.events.start[row]), value) for row, value in told]
    return counted + host_loads(shard.told_sums)


def _counted(shard: ShardEvents) -> tuple[np.ndarray, np.ndarray]:
    """Events that are counters, and their values."""
    counters = shard.rows_of("C")
    if not len(counters):
        return counters, np.zeros(0, np.float64)
    told = shard.events.keys["value"]
    # Each text is looked at once; the last one is that of number -1.
    values = np.array([*map(_value_of, told.texts), np.nan])[told.numbers_of(counters, -1)]
    is_value = ~np.isnan(values)
    shard.drop("counter_without_value", int(len(counters) - is_value.sum()))
    return counters[is_value], values[is_value]


def _value_of(text: str) -> float:
    """A number as JSON writes it; NaN for anything else."""
    try:
        return float(json.loads(text))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return math.nan
