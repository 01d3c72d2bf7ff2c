"""Batches that workers of a loader make while the training goes on: which wait of the loop was for which batch.

A worker begins a batch when it has made its batch before and the loop has taken one out of the queue (`prefetch` batches a worker
are under way at a time).  Loading in the training thread itself is that thread's own work and not found here.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.model.trace import Trace, by_rank
from ...timeline.vocabulary import DATA_FETCH, DATA_WAIT, LaneKind
from .arrays import Floats, Mask
from .intervals import Times
from .steps import Steps

#: PyTorch's default of batches under way for each worker.
PREFETCH: Final = 2
#: If more waits than this share contradict the order of batches, the order is not known.
MAX_CONTRADICTIONS_RATIO: Final = 0.05
#: The pipe between worker and loop, and clocks read at different moments.
SLACK_NS: Final = 2_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Loading:
    """Batches that the analysed steps wait for: B rows, in order of ranks and batches."""

    rank: Times
    """Row of the rank."""
    wait_start_ns: Times
    wait_end_ns: Times
    made_ns: Times
    """When a worker had made it."""
    busy_ns: Floats
    """How long the worker took from when it could begin."""
    same_worker: Times
    """Row of the batch that the worker made before, -1 if none of these."""
    freed_by: Times
    """Row of the batch whose taking let the worker begin, -1 if none of these."""
    ordered_ns: Floats
    """When that was, if it was before the analysed steps; -inf elsewhere."""
    fresh: Mask
    """Whether it was ordered when the loop began to wait for `freed_by`, not when it had it: the first batches of an epoch."""

    def __len__(self) -> int:
        return len(self.made_ns)

    @property
    def held_up(self) -> Mask:
        """Whether the loop had to wait for the worker."""
        late: Mask = self.made_ns > self.wait_start_ns
        return late


def find_loading(trace: Trace, steps: Steps) -> Loading:
    """Match waits and batches of every rank; without rows where workers were not used or the order is not known."""
    spans = trace.spans
    waits = spans[(spans["name"] == DATA_WAIT) & (spans["lane_kind"] == str(LaneKind.DATA))]
    made = spans[(spans["name"] == DATA_FETCH) & (spans["lane_kind"] == str(LaneKind.WORKER))]
    parts: list[dict[str, np.ndarray]] = []
    count = 0
    waits_of, made_of = by_rank(waits), by_rank(made)
    for row, rank in enumerate(steps.ranks):
        found = _of_rank(trace, waits_of.get(rank, waits.iloc[:0]), made_of.get(rank, made.iloc[:0]))
        if found is None:
            continue
        begin, end = steps.start_ns[row, 0], steps.end_ns[row, -1]
        first = int(np.searchsorted(found["wait_end_ns"], begin, side="right"))
        last = int(np.searchsorted(found["wait_end_ns"], end, side="right"))
        part = {name: values[first:last] for name, values in found.items()}
        is_before = (part["freed_by"] >= 0) & (part["freed_by"] < first)
        part["ordered_ns"] = np.where(is_before, part["ordered_ns"], -np.inf)
        for name in ("same_worker", "freed_by"):
            part[name] = np.where(part[name] >= first, part[name] - first + count, -1)
        parts.append({"rank": np.full(last - first, row), **part})
        count += last - first

    def column(name: str, dtype: type) -> np.ndarray:
        return np.concatenate([part[name] for part in parts]).astype(dtype) if parts else np.empty(0, dtype=dtype)

    return Loading(
        rank=column("rank", np.int64),
        wait_start_ns=column("wait_start_ns", np.int64),
        wait_end_ns=column("wait_end_ns", np.int64),
        made_ns=column("made_ns", np.int64),
        busy_ns=column("busy_ns", np.float64),
        same_worker=column("same_worker", np.int64),
        freed_by=column("freed_by", np.int64),
        ordered_ns=column("ordered_ns", np.float64),
        fresh=column("fresh", np.bool_),
    )


def _of_rank(trace: Trace, waits: pd.DataFrame, made: pd.DataFrame) -> dict[str, np.ndarray] | None:
    """Waits with their batches, in order; None where they do not fit together."""
    if waits.empty or made.empty:
        return None
    waits = waits.sort_values("start_ns", kind="stable")
    batch = _number_in(trace, made, b'"batch":')
    if (batch < 0).any():
        return None
    by_start = np.argsort(made["start_ns"].to_numpy(), kind="stable")
    made, batch = made.iloc[by_start], batch[by_start]
    made = made.iloc[np.lexsort((batch, _times_before(batch)))]
    count = min(len(waits), len(made))
    begun = made["start_ns"].to_numpy()[:count]
    ends = (made["start_ns"] + made["dur_ns"]).to_numpy()[:count]
    wait_start = waits["start_ns"].to_numpy()[:count]
    wait_end = wait_start + waits["dur_ns"].to_numpy()[:count]
    if (ends > wait_end + SLACK_NS).mean() > MAX_CONTRADICTIONS_RATIO:
        return None
    ends = np.minimum(ends, wait_end)
    worker = made["lane"].cat.codes.to_numpy()[:count]
    index = np.arange(count)
    same = np.full(count, -1)
    for number in np.unique(worker):
        mine = index[worker == number]
        same[mine[1:]] = mine[:-1]
    freed = _freed_by(index, begun, wait_end, len(np.unique(worker)))
    freed, fresh = _ordered_by(index, freed, begun, ends[np.maximum(same, 0)] * (same >= 0), wait_start, wait_end)
    ordered = np.where(fresh, wait_start[np.maximum(freed, 0)], wait_end[np.maximum(freed, 0)])
    ordered = np.where(freed >= 0, ordered, begun)
    could_begin = np.maximum(np.where(same >= 0, ends[np.maximum(same, 0)], ordered), ordered)
    return {
        "wait_start_ns": wait_start,
        "wait_end_ns": wait_end,
        "made_ns": ends,
        "busy_ns": np.maximum(ends - could_begin, 0).astype(float),
        "same_worker": same,
        "freed_by": freed,
        "ordered_ns": ordered.astype(float),
        "fresh": fresh,
    }


def _times_before(numbers: Times) -> Times:
    """How often each of the numbers has come before: a batch's comes again in every epoch."""
    order = np.argsort(numbers, kind="stable")
    ordered, place = numbers[order], np.arange(len(numbers))
    is_first = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    times = np.empty(len(numbers), dtype=np.int64)
    times[order] = place - np.maximum.accumulate(np.where(is_first, place, 0))
    return times


def _freed_by(index: Times, begun: Times, taken: Times, workers: int) -> Times:
    """The batch whose taking let each one begin: `prefetch` batches a worker earlier."""
    freed = index
    for prefetch in (PREFETCH, 4, 8, 16):
        freed = index - prefetch * workers
        known = freed >= 0
        early = known & (begun < taken[np.maximum(freed, 0)] - SLACK_NS)
        if early.sum() <= MAX_CONTRADICTIONS_RATIO * max(known.sum(), 1):
            break
    return freed


def _ordered_by(
    index: Times, freed: Times, begun: Times, free: Times, wait_start: Times, wait_end: Times
) -> tuple[Times, Mask]:
    """The wait that let a worker begin each batch, and whether it was its beginning (of an epoch) rather than its end.

    A batch that was begun much later than its worker and the queue would have let it was ordered later: the loop made a new
    iterator.
    """
    could = np.maximum(free, np.where(freed >= 0, wait_end[np.maximum(freed, 0)], begun))
    late = begun > could + SLACK_NS
    during = np.minimum(np.searchsorted(wait_start, begun, side="right") - 1, index)
    fresh = late & (during >= 0) & (begun <= wait_end[np.maximum(during, 0)])
    return np.where(late, during, freed), fresh


def _number_in(trace: Trace, spans: pd.DataFrame, key: bytes) -> Times:
    """An integer out of the spans' args; -1 where there is none."""
    numbers = np.full(len(spans), -1, dtype=np.int64)
    for position, row in enumerate(spans["args_row"].to_numpy()):
        if row >= 0:
            _, found, rest = trace.raw_args[int(row)].partition(key)
            digits = rest.lstrip()[:12]
            text = digits[: len(digits) - len(digits.lstrip(b"0123456789"))]
            numbers[position] = int(text) if found and text else -1
    return numbers
