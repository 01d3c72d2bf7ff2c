"""Which call of the host launched what on the device of a Kineto trace, and what of it belongs to the backward pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..model.columns import assemble
from ..model.trace import LAUNCH_COLUMNS
from ..scanning import Events, first_rows, gather, narrow, select
from .kineto_marks import DEVICE, RUNTIME, Kinds


@dataclass(slots=True)
class Launches:
    """How the spans of a file's devices were launched, as far as the profiler has numbered them: a row each."""

    spans: np.ndarray
    """Their rows among the complete events, ascending."""
    caller: np.ndarray
    """The call's row among the complete events; -1 where the file does not hold it."""
    correlation: np.ndarray
    """The profiler's number of the call; more than 0."""
    times: np.ndarray
    """When the call began; -1 if unknown."""

    def shift(self, ns: int) -> None:
        """Add to all times."""
        self.times += ns
        is_unknown = self.caller < 0
        if is_unknown.any():
            self.times[is_unknown] = -1

    def halves(self) -> "tuple[Launches, Launches]":
        """The first and the second half of them, not copied."""
        middle = len(self.spans) // 2
        columns = (self.spans, self.caller, self.correlation, self.times)
        return Launches(*(column[:middle] for column in columns)), Launches(*(column[middle:] for column in columns))

    def of(self, events: Events, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """When and on which threads (`threads_of`) some spans of devices were launched; -1 where that is unknown.

        Args:
            events: complete events only.
            rows: of the spans, in any order.
        """
        if not len(self.spans):
            return np.full(len(rows), -1, np.int64), np.full(len(rows), -1, np.int64)
        position = np.minimum(np.searchsorted(self.spans, rows), len(self.spans) - 1)
        is_here = self.spans[position] == rows
        caller = np.where(is_here, self.caller[position], -1)
        times = np.where(is_here, self.times[position], -1)
        return times, np.where(caller >= 0, threads_of(events, np.maximum(caller, 0)), -1)


def threads_of(events: Events, rows: np.ndarray) -> np.ndarray:
    """The threads of some events, each as one number made of its own and its process's: int64."""
    threads = events.thread.take(rows).astype(np.int64)
    threads <<= 32
    threads |= events.process.take(rows)
    return threads


def find_launches(events: Events, kinds: Kinds) -> Launches:
    """Match the spans of devices with calls by the numbers that both carry.

    Args:
        events: complete events only.
        kinds: of them.
    """
    correlation = events.keys["correlation"]
    rows, numbers = correlation.rows, correlation.numbers
    if len(numbers) and int(numbers.min()) <= 0:
        rows, numbers = rows.compress(numbers > 0), numbers.compress(numbers > 0)
    calls, of_calls = select(kinds.of_event, kinds.of_category(RUNTIME), rows, numbers)
    spans, wanted = select(kinds.of_event, kinds.of_category(DEVICE), rows, numbers)
    first = _first_of(of_calls, wanted)
    calls = calls.astype(np.int32 if len(events) < 2**31 else np.int64)
    if not len(first) or int(first.min()) >= 0:
        caller = gather(calls, first)
        times = gather(events.start, caller)
    else:
        is_known = first >= 0
        caller, times = np.full(len(spans), -1, calls.dtype), np.full(len(spans), -1, np.int64)
        of_known = calls[first[is_known]]
        caller[is_known] = of_known
        times[is_known] = events.start[of_known]
    return Launches(spans=spans, caller=caller, correlation=wanted, times=times)


def _first_of(numbers: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where each wanted number stands first among `numbers`; -1 for those that are not there.

    Args:
        numbers: integers[N], more than 0.
        wanted: integers[W].
    """
    found = np.full(len(wanted), -1, np.int64)
    if not len(numbers):
        return found
    low, high = int(numbers.min()), int(numbers.max())
    if high - low < 8 * len(numbers) and len(numbers) < 2**31:
        # Profilers count the calls: a place for each number takes a fifth of the time of sorting.
        if low < 2 * len(numbers):  # they are their own places then
            low = 0
        place = first_rows(numbers, low, high - low + 1)
        if len(wanted) and int(wanted.min()) >= low and int(wanted.max()) <= high:  # as a rule
            return gather(place, wanted - low if low else wanted)
        is_near = np.flatnonzero((wanted >= low) & (wanted <= high))
        found[is_near] = place[wanted[is_near] - low]
        return found
    order = np.argsort(numbers, kind="stable")
    sorted_numbers = numbers[order]
    position = np.minimum(np.searchsorted(sorted_numbers, wanted), len(numbers) - 1)
    is_there = sorted_numbers[position] == wanted
    found[is_there] = order[position[is_there]]
    return found


def launched_by_backward(launched: Launches, events: Events, nodes: np.ndarray, loop: np.ndarray) -> np.ndarray:
    """Which of `launched` autograd launched.

    Autograd runs on a thread of its own, on which everything belongs to it (accumulation and hooks lie between its nodes); a node
    on the training thread counts for what was launched inside it.

    Args:
        events: complete events only.
        nodes: rows of those of the host that are nodes of autograd.
        loop: rows of those that only the training loop has.
    """
    result = np.zeros(len(launched.spans), bool)
    if not len(nodes):
        return result
    threads, starts = threads_of(events, nodes), events.start[nodes]
    ends = starts + events.duration[nodes]
    training = np.unique(threads_of(events, loop))
    is_known = launched.caller >= 0
    callers, processes = gather(events.thread, launched.caller), gather(events.process, launched.caller)
    for thread in np.unique(threads):
        mine = threads == thread
        of_thread = is_known & (callers == int(thread) >> 32) & (processes == int(thread) & 0xFFFFFFFF)
        if thread in training or not len(training):
            result[of_thread] = inside(launched.times[of_thread], starts[mine], ends[mine])
        else:
            result |= of_thread & (launched.times >= int(starts[mine].min()))
    return result


def inside(times: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Which times lie in one of the intervals, which may overlap."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order]) if len(ends) else ends
    position = np.searchsorted(starts, times, side="right") - 1
    return (position >= 0) & (times < ends[np.maximum(position, 0)]) if len(starts) else np.zeros(len(times), bool)


def launches_of(rank: int, events: Events, launched: Launches, lane: tuple[np.ndarray, list[str]]) -> dict[str, Any]:
    """Columns of LAUNCH_COLUMNS for one file, in order of the device's times."""
    starts = gather(events.start, launched.spans)
    caller, times, correlation = launched.caller, launched.times, launched.correlation
    if len(starts) and not (starts[1:] >= starts[:-1]).all():
        order = np.argsort(starts, kind="stable")
        starts, caller, times, correlation = (gather(column, order) for column in (starts, caller, times, correlation))
    # "" is in front of the lanes.
    lanes = ["", *lane[1]]
    of_lane = narrow(np.arange(1, max(len(lanes), 2), dtype=np.int32), len(lanes))
    threads, durations = gather(of_lane, gather(lane[0], caller)), gather(events.duration, caller)
    is_unknown = caller < 0
    if is_unknown.any():
        threads[is_unknown] = durations[is_unknown] = 0
    return {
        "rank": np.full(len(starts), rank, np.int32),
        "start_ns": starts,
        "thread": (threads, lanes),
        "launched_ns": times,
        "call_ns": durations,
        "correlation": correlation.astype(np.int64),
    }


def assemble_launches(parts: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """One table of all files."""
    return assemble(LAUNCH_COLUMNS, parts)
