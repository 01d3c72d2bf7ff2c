"""Gaps of a device: how long they are and why, and how far the host is ahead of the device when it launches."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.model.trace import Trace, by_rank
from .arrays import Floats, Integers
from .device import Device, idle_of
from .host_calls import read_host
from .intervals import total_within

#: Where classes of gaps begin, ns; the last one has no end.
EDGES_NS: Final = (0, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 1_000_000, 10_000_000)
#: Columns of time in which the host's lead is summed up.
MAX_COLUMNS: Final = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Gaps:
    """The gaps between the activities of a rank's device, within its steps or the recording."""

    rank: int
    counts: Integers
    """By class of length (EDGES_NS): int64[class]."""
    time_ns: dict[str, Integers]
    """By reason (idle.REASONS) and class of the whole gap: int64[class]; reasons that take time only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lead:
    """How long activities of a rank's device lie in its queue: from the begin of the call that launches each to its start."""

    rank: int
    at_ns: Integers
    """Middle of each column of time that has launches."""
    median_ns: Floats
    low_ns: Floats
    """A tenth of the activities wait less."""
    all_median_ns: float


def find_gaps(trace: Trace, device: Device, rank: int, launched: pd.DataFrame) -> Gaps | None:
    """The gaps of a rank; None if its device is never idle, or it has none.

    Args:
        launched: the rank's rows of LAUNCH_COLUMNS.
    """
    if rank not in device.steps.ranks:
        return None
    row = device.steps.ranks.index(rank)
    own = by_rank(trace.spans).get(rank, trace.spans.iloc[:0])
    idle, by_reason = idle_of(device.steps, device.breakdown, row, own, read_host(own), launched, device.has_steps)
    if not len(idle):
        return None
    which = np.searchsorted(EDGES_NS, idle[:, 1] - idle[:, 0], side="right") - 1
    classes = len(EDGES_NS)
    time_ns = {}
    for reason, moments in by_reason.items():
        inside = total_within(moments, idle[:, 0], idle[:, 1])
        if inside.any():
            sums: Integers = np.bincount(which, weights=inside, minlength=classes).astype(np.int64)
            time_ns[reason] = sums
    return Gaps(rank=rank, counts=np.bincount(which, minlength=classes), time_ns=time_ns)


def find_lead(rank: int, launched: pd.DataFrame) -> Lead | None:
    """How far a rank's host is ahead; None where the trace does not show its launches.

    Args:
        launched: the rank's rows of LAUNCH_COLUMNS.
    """
    launches = launched[launched["launched_ns"].to_numpy() >= 0]
    if len(launches) < 2:  # noqa: PLR2004  nothing to see over time
        return None
    begun, called = launches["start_ns"].to_numpy(), launches["launched_ns"].to_numpy()
    order = np.argsort(begun, kind="stable")
    begun, lead = begun[order], np.maximum(begun[order] - called[order], 0)
    span = max(int(begun[-1] - begun[0]), 1)
    columns = min(MAX_COLUMNS, max(len(begun) // 4, 1))
    column = (begun - begun[0]) * columns // (span + 1)
    first = np.flatnonzero(np.concatenate(([True], column[1:] != column[:-1])))
    parts = np.split(lead, first[1:])
    return Lead(
        rank=rank,
        at_ns=begun[0] + (2 * column[first] + 1) * span // (2 * columns),
        median_ns=np.array([np.median(part) for part in parts]),
        low_ns=np.array([np.quantile(part, 0.1) for part in parts]),
        all_median_ns=float(np.median(lead)),
    )
