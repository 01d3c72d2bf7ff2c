"""Collectives by kind and size: how long they wait, how long they move bytes, and how fast.

A collective's time on a rank is split at the last rank's start: before it the rank waits for the straggler, after it bytes
move.  Bandwidths divide by the moving part alone, because waiting says nothing about the wire.

Source of the formulas: nccl-tests, doc/PERFORMANCE.md: algbw = bytes / time; busbw = algbw times the share of the data that
crosses each link, 2(n-1)/n for allreduce, (n-1)/n for allgather, reducescatter and alltoall, 1 for broadcast.
"""

import numpy as np
import pandas as pd

from ...timeline.trace import Trace


def bus_factor(kind: str, size: int) -> float:
    """What algbw is multiplied by to get busbw."""
    if size < 2:  # noqa: PLR2004  nothing crosses a link
        return 0.0
    share = (size - 1) / size
    factors = {"allreduce": 2 * share, "adasum": 2 * share, "broadcast": 1.0, "barrier": 0.0}
    return factors.get(kind, share)


def split_collectives(trace: Trace) -> pd.DataFrame:
    """The trace's collectives with `wait_ns` and `transfer_ns`, which sum to `dur_ns`."""
    table = trace.collectives.copy()
    key = ["process_set", "seq"]
    last_start = table.groupby(key, observed=True)["start_ns"].transform("max")
    wait = np.clip(last_start.to_numpy() - table["start_ns"].to_numpy(), 0, table["dur_ns"].to_numpy())
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
