"""Our spans of a device beside those of another witness, such as CUPTI's."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tlkit.timeline.model.trace import Trace
from tlkit.timeline.vocabulary import LaneKind

Times = np.ndarray
"""int64[n, 2]: starts and ends, ns, on a clock that both witnesses share."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Pairs of spans that are the same piece of work."""

    unmatched: int
    """Of ours: those that no span of the other overlaps."""
    duration_errors: np.ndarray
    """(ours - theirs) / theirs, of each pair: float[pairs]."""
    start_off_ns: np.ndarray
    """Ours - theirs: int64[pairs]."""

    @property
    def pairs(self) -> int:
        """How many were found."""
        return len(self.duration_errors)

    @property
    def largest_duration_error(self) -> float:
        """0 without pairs."""
        return float(np.abs(self.duration_errors).max(initial=0.0))

    @property
    def largest_start_off_ns(self) -> int:
        """0 without pairs."""
        return int(np.abs(self.start_off_ns).max(initial=0))


def compare(ours: Times, theirs: Times) -> Comparison:
    """Pair each of our spans with the one of the other witness that it shares most time with; each is taken once.

    >>> found = compare(np.array([[100, 202]]), np.array([[90, 190], [500, 600]]))
    >>> found.pairs, found.largest_duration_error, found.largest_start_off_ns
    (1, 0.02, 10)
    """
    theirs = theirs[np.argsort(theirs[:, 0], kind="stable")] if len(theirs) else theirs
    taken: set[int] = set()
    errors, offs, unmatched = [], [], 0
    for start, end in ours[np.argsort(ours[:, 0], kind="stable")] if len(ours) else ours:
        shared = np.minimum(theirs[:, 1], end) - np.maximum(theirs[:, 0], start) if len(theirs) else np.empty(0)
        shared = np.array([0 if place in taken else ns for place, ns in enumerate(shared)])
        if not len(shared) or shared.max() <= 0:
            unmatched += 1
            continue
        place = int(shared.argmax())
        taken.add(place)
        length = theirs[place, 1] - theirs[place, 0]
        errors.append((end - start - length) / length)
        offs.append(start - theirs[place, 0])
    return Comparison(
        unmatched=unmatched, duration_errors=np.array(errors, float), start_off_ns=np.array(offs, np.int64)
    )


def times_of(trace: Trace, rows: pd.DataFrame) -> Times:
    """Spans of a trace on the wall clock."""
    start = rows["start_ns"].to_numpy() + trace.meta.epoch_unix_ns
    return np.stack([start, start + rows["dur_ns"].to_numpy()], axis=1).astype(np.int64)


def on_device(trace: Trace, names: Sequence[str]) -> pd.DataFrame:
    """The spans of the device with these names, or with one of them inside theirs, by time."""
    spans = trace.spans
    name = spans["name"].astype(str)
    wanted = np.logical_or.reduce([name.str.contains(each, regex=False) for each in names])
    found: pd.DataFrame = spans[wanted & (spans["lane_kind"] == str(LaneKind.COMPUTE))].sort_values("start_ns")
    return found


def covered_ns(times: Times) -> int:
    """The time that at least one of them covers.

    >>> covered_ns(np.array([[0, 10], [5, 20], [30, 31]]))
    21
    """
    total, until = 0, -(2**63)
    for start, end in sorted(map(tuple, times.tolist())):
        total += max(end - max(start, until), 0)
        until = max(until, end)
    return total
