"""Which call of the host launched what on the device of a Kineto trace, and what of it belongs to the backward pass."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from ..model.columns import assemble
from ..model.trace import LAUNCH_COLUMNS
from ..scanning import Events

#: Nodes of autograd: newer profilers wrap each in a function of the engine, those before 2022 show the node alone.
BACKWARD: Final = re.compile(r"^autograd::engine::evaluate_function|^## backward ##$|^\w+Backward\d*$")
#: What only the training loop calls its spans.
TRAINING_LOOP: Final = re.compile(r"^ProfilerStep|^Optimizer\.|^enumerate\(DataLoader|^## (?:forward|optimizer) ##$")


@dataclass(slots=True)
class Launches:
    """Of the complete events of a file: how each span of a device was launched."""

    caller: np.ndarray
    """The call's row among the complete events; -1 where the file does not hold it."""
    correlation: np.ndarray
    """The profiler's number of the call; 0 or less if it has none."""
    times: np.ndarray
    """When the call began; -1 if unknown."""
    threads: np.ndarray
    """The call's thread, as its number and its process's; -1 if unknown."""


def find_launches(
    events: Events, rows: np.ndarray, is_device: np.ndarray, is_runtime: np.ndarray, starts: np.ndarray
) -> Launches:
    """Match the spans of devices with calls by the numbers that both carry."""
    correlation = events.dense("correlation")[rows]
    is_numbered = correlation > 0
    calls, device = np.flatnonzero(is_runtime & is_numbered), np.flatnonzero(is_device & is_numbered)
    first = _first_of(correlation[calls], correlation[device])
    known, of_known = device[first >= 0], calls[first[first >= 0]]
    caller, times, threads = (np.full(len(rows), -1, np.int64) for _ in range(3))
    caller[known] = of_known
    times[known] = starts[of_known]
    threads[known] = events.thread[rows[of_known]].astype(np.int64) << 32 | events.process[rows[of_known]]
    return Launches(caller=caller, correlation=correlation, times=times, threads=threads)


def _first_of(numbers: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where each wanted number stands first among `numbers`; -1 for those that are not there.

    Args:
        numbers: int64[N], more than 0.
        wanted: int64[W].
    """
    found = np.full(len(wanted), -1, np.int64)
    if not len(numbers):
        return found
    low, high = int(numbers.min()), int(numbers.max())
    if high - low < 8 * len(numbers):
        # Profilers count the calls: a place for each number takes a fifth of the time of sorting.
        place = np.full(high - low + 1, -1, np.int64)
        place[numbers[::-1] - low] = np.arange(len(numbers) - 1, -1, -1)  # of two the one written last counts
        is_near = np.flatnonzero((wanted >= low) & (wanted <= high))
        found[is_near] = place[wanted[is_near] - low]
        return found
    order = np.argsort(numbers, kind="stable")
    sorted_numbers = numbers[order]
    position = np.minimum(np.searchsorted(sorted_numbers, wanted), len(numbers) - 1)
    is_there = sorted_numbers[position] == wanted
    found[is_there] = order[position[is_there]]
    return found


def launched_by_backward(
    launched: Launches,
    is_backward: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    threads: np.ndarray,
    loops: np.ndarray,
) -> np.ndarray:
    """Which spans of the device autograd launched.

    Autograd runs on a thread of its own, on which everything belongs to it (accumulation and hooks lie between its nodes); a node
    on the training thread counts for what was launched inside it.

    Args:
        is_backward: host spans that match `BACKWARD`.
        threads: of all spans.
        loops: spans that only the training loop has.
    """
    result = np.zeros(len(starts), bool)
    training = np.unique(threads[loops])
    for thread in np.unique(threads[is_backward]):
        of_thread = launched.threads == thread
        if thread in training or not len(training):
            mine = is_backward & (threads == thread)
            result[of_thread] = inside(launched.times[of_thread], starts[mine], ends[mine])
        else:
            first = int(starts[is_backward & (threads == thread)].min())
            result |= of_thread & (launched.times >= first)
    return result


def inside(times: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Which times lie in one of the intervals, which may overlap."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order]) if len(ends) else ends
    position = np.searchsorted(starts, times, side="right") - 1
    return (position >= 0) & (times < ends[np.maximum(position, 0)]) if len(starts) else np.zeros(len(times), bool)


def launches_of(
    rank: int, events: Events, rows: np.ndarray, launched: Launches, is_device: np.ndarray, lane: tuple[np.ndarray, list[str]],
    shift_ns: int,
) -> dict[str, Any]:  # fmt: skip
    """Columns of LAUNCH_COLUMNS for one file, in order of the device's times."""
    chosen = np.flatnonzero(is_device & (launched.correlation > 0))
    chosen = chosen[np.argsort(events.start[rows[chosen]], kind="stable")]
    caller = launched.caller[chosen]
    known = caller >= 0
    lanes = ["", *lane[1]]
    return {
        "rank": np.full(len(chosen), rank, np.int32),
        "start_ns": events.start[rows[chosen]] + shift_ns,
        "thread": (np.where(known, lane[0][caller] + 1, 0).astype(np.int32), lanes),
        "launched_ns": np.where(known, launched.times[chosen] + shift_ns, -1),
        "call_ns": np.where(known, events.duration[rows[caller]], 0),
        "correlation": launched.correlation[chosen],
    }


def assemble_launches(parts: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """One table of all files."""
    return assemble(LAUNCH_COLUMNS, parts)
