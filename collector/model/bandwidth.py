"""Collectives by kind and size: how long they wait, how long they move bytes, and how fast.

A collective's time on a rank is split at the last rank's start: before it the rank waits for the straggler, after it bytes
move.  Bandwidths divide by the moving part alone, because waiting says nothing about the wire.

Source of the formulas: nccl-tests, doc/PERFORMANCE.md: algbw = bytes / time; busbw = algbw times the share of the data that
crosses each link, 2(n-1)/n for allreduce, (n-1)/n for allgather, reducescatter and alltoall, 1 for broadcast.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from ...timeline.model.trace import Trace

#: Of a line through times and sizes: sizes that it takes, how far they have to lie apart, and points (pairs are looked at).
MIN_SIZES: Final = 3
MIN_DISTANCE: Final = 4
MAX_POINTS: Final = 400


def bus_factor(kind: str, size: int) -> float:
    """What algbw is multiplied by to get busbw."""
    if size < 2:  # noqa: PLR2004  nothing crosses a link
        return 0.0
    share = (size - 1) / size
    factors = {"allreduce": 2 * share, "adasum": 2 * share, "broadcast": 1.0, "barrier": 0.0}
    return factors.get(kind, share)


def split_collectives(trace: Trace, *, has_one_clock: bool = True) -> pd.DataFrame:
    """The trace's collectives with `wait_ns` and `transfer_ns`, which sum to `dur_ns`.

    Args:
        has_one_clock: whether starts of several ranks can be compared.  Where they cannot, the rank whose collective is shortest
            came last, since all leave together: its duration is the transfer.
    """
    table = trace.collectives.copy()
    groups = table.groupby(["process_set", "seq"], observed=True)
    if has_one_clock:
        wait = groups["start_ns"].transform("max").to_numpy() - table["start_ns"].to_numpy()
    else:
        wait = table["dur_ns"].to_numpy() - groups["dur_ns"].transform("min").to_numpy()
    wait = np.clip(wait, 0, table["dur_ns"].to_numpy())
    # A rank's seq -1 is a collective whose partners are unknown: nothing can be said of its wait.
    wait = np.where(table["seq"].to_numpy() < 0, 0, wait)
    table["wait_ns"] = wait
    table["transfer_ns"] = table["dur_ns"].to_numpy() - wait
    return table


def summarise_collectives(split: pd.DataFrame, size: int) -> pd.DataFrame:
    """One row a kind, size and process set, largest total time first.

    Args:
        split: what `split_collectives` returns.
        size: ranks of the job.

    Returns:
        kind, bytes, process_set, count (collectives, not ranks), median_ns, wait_ns, transfer_ns (medians), total_ns (mean
        over ranks), algbw_gbps, busbw_gbps (GB/s, 10^9 bytes).
    """
    ranks = max(split["rank"].nunique(), 1)
    groups = split.groupby(["kind", "nbytes", "process_set"], observed=True)
    table = groups.agg(
        count=("seq", "size"),
        median_ns=("dur_ns", "median"),
        wait_ns=("wait_ns", "median"),
        transfer_ns=("transfer_ns", "median"),
        total_ns=("dur_ns", "sum"),
        tensors=("tensors", "median"),
    ).reset_index()
    table["total_ns"] /= ranks
    table["count"] = np.maximum(table["count"] // ranks, 1)
    nbytes = table["nbytes"].to_numpy(dtype=float)
    transfer = table["transfer_ns"].to_numpy(dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        algbw = np.where((nbytes > 0) & (transfer > 0), nbytes / transfer, 0.0)
    table["algbw_gbps"] = algbw
    factors = [bus_factor(str(kind), size) for kind in table["kind"]]
    table["busbw_gbps"] = algbw * np.array(factors, dtype=float)
    table = table.rename(columns={"nbytes": "bytes"})
    return table.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """What a collective costs: latency, and bytes over bandwidth."""

    kind: str
    latency_ns: float
    algbw_gbps: float
    error_ratio: float
    """Median distance of the points from the line, as a share of their times."""


def fit_line(kind: str, nbytes: np.ndarray, took_ns: np.ndarray) -> Line | None:
    """The line through times over sizes: medians of pairs (Theil, 1950; Sen, 1968), which stray points do not bend.

    Args:
        nbytes: float[n], sizes.
        took_ns: float[n], how long one of each size moves bytes.

    Returns:
        None where there are fewer than three sizes, they lie too near to each other, or larger ones do not take longer.

    >>> line = fit_line("allreduce", np.array([1e6, 2e6, 4e6, 8e6]), np.array([2e6, 3e6, 5e6, 9e6]))
    >>> round(line.latency_ns), round(line.algbw_gbps, 3)
    (1000000, 1.0)
    """
    known = (nbytes > 0) & (took_ns > 0)
    nbytes, took_ns = nbytes[known][:MAX_POINTS], took_ns[known][:MAX_POINTS]
    if len(np.unique(nbytes)) < MIN_SIZES or nbytes.max() < MIN_DISTANCE * nbytes.min():
        return None
    first, second = np.triu_indices(len(nbytes), 1)
    apart = nbytes[first] != nbytes[second]
    first, second = first[apart], second[apart]
    slope = float(np.median((took_ns[second] - took_ns[first]) / (nbytes[second] - nbytes[first])))
    if slope <= 0:
        return None
    latency = max(float(np.median(took_ns - slope * nbytes)), 0.0)
    error = float(np.median(np.abs(latency + slope * nbytes - took_ns) / took_ns))
    return Line(kind=kind, latency_ns=latency, algbw_gbps=1 / slope, error_ratio=error)


def fit_lines(table: pd.DataFrame) -> tuple[Line, ...]:
    """A line for each kind of which enough sizes are known; `table` as of `summarise_collectives`."""
    lines = (
        fit_line(str(kind), rows["bytes"].to_numpy(dtype=float), rows["transfer_ns"].to_numpy(dtype=float))
        for kind, rows in table.groupby(table["kind"].astype(str), observed=True)
    )
    return tuple(line for line in lines if line is not None)
