"""What a trace holds, in numbers: the base of `tl-trace info`.

Times on a device are counted as Holistic Trace Analysis counts them: busy is the union of all its work, compute the union of its
kernels that neither copy nor communicate, and the rest of busy is no computation; idle is what remains from the first to the
last.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..errors import TraceError
from ..model.trace import TABLES, Trace
from ..read.open import open_trace
from ..vocabulary import LaneKind

Intervals = np.ndarray


def union_ns(start: np.ndarray, end: np.ndarray) -> Intervals:
    """Disjoint intervals, ascending, that cover the same; int64[n, 2]."""
    if not len(start):
        return np.zeros((0, 2), np.int64)
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    begins = np.concatenate([[True], start[1:] > end[:-1]])
    ends = np.concatenate([begins[1:], [True]])
    return np.stack([start[begins], end[ends]], axis=1)


def _total(intervals: Intervals) -> int:
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def device_times(spans: pd.DataFrame) -> dict[str, Any]:
    """What one rank's device did; times in ns.

    Args:
        spans: the rank's spans on lanes of compute and communication.
    """
    names = spans["name"].astype("str")
    start = spans["start_ns"].to_numpy()
    end = start + spans["dur_ns"].to_numpy()
    is_communication = (spans["lane_kind"] == str(LaneKind.COMMUNICATION)).to_numpy()
    is_memory = names.str.match(r"(?i)mem(cpy|set)").to_numpy(dtype=bool) & ~is_communication
    is_compute = ~is_communication & ~is_memory
    busy, compute = union_ns(start, end), union_ns(start[is_compute], end[is_compute])
    communication = union_ns(start[is_communication], end[is_communication])
    both = (
        _total(compute)
        + _total(communication)
        - _total(union_ns(start[is_compute | is_communication], end[is_compute | is_communication]))
    )
    whole = int(end.max() - start.min())
    return {
        "kernels": {
            kind: {"count": int(mask.sum()), "total_ns": int((end - start)[mask].sum())}
            for kind, mask in (("computation", is_compute), ("communication", is_communication), ("memory", is_memory))
        },
        "span_ns": whole,
        "busy_ns": _total(busy),
        "compute_ns": _total(compute),
        "non_compute_ns": _total(busy) - _total(compute),
        "idle_ns": whole - _total(busy),
        "communication_ns": _total(communication),
        "overlap_ns": both,
        "overlap_percent": round(100 * both / _total(communication), 2) if len(communication) else None,
    }


def summarize(trace: Trace) -> dict[str, Any]:
    """What a trace holds, as JSON can say it."""
    meta, spans = trace.meta, trace.spans
    end = spans["start_ns"] + spans["dur_ns"]
    result: dict[str, Any] = {
        "schema": "tlkit.trace-info/1",
        "format": meta.format,
        "files": list(meta.files),
        "ranks": list(meta.ranks),
        "size": meta.size,
        "events": meta.events,
        "spans": len(spans),
        "duration_ns": int(end.max() - spans["start_ns"].min()) if len(spans) else 0,
        "epoch_unix_ns": meta.epoch_unix_ns,
        "dropped": dict(meta.dropped),
        "clock": {
            "method": meta.clock.method,
            "uncertainty_ns": meta.clock.uncertainty_ns,
            "ranks": {
                str(rank): {"offset_ns": clock.offset_ns, "drift": clock.drift, "uncertainty_ns": clock.uncertainty_ns}
                for rank, clock in meta.clock.ranks.items()
            },
        },
        "notes": list(meta.notes),
        "tables": {name: len(getattr(trace, name)) for name in TABLES},
        "lanes": [
            {"lane_kind": str(kind), "category": str(category), "spans": int(count), "total_ns": int(total)}
            for (kind, category), count, total in _grouped(spans, ["lane_kind", "category"], "dur_ns")
        ],
        "collectives": [
            {"kind": str(kind), "algorithm": str(algorithm), "count": int(count), "total_ns": int(total)}
            for (kind, algorithm), count, total in _grouped(trace.collectives, ["kind", "algorithm"], "dur_ns")
        ],
        "by_rank": {},
    }
    is_device = spans["lane"].astype("str").str.startswith(("stream ", "device")) & spans["lane_kind"].isin(
        [str(LaneKind.COMPUTE), str(LaneKind.COMMUNICATION)]
    )
    on_device = spans[is_device]
    steps_of = trace.steps.groupby("rank", observed=True).size().to_dict()
    spans_of = spans.groupby("rank", observed=True).size().to_dict()
    device_of = {int(str(rank)): device_times(rows) for rank, rows in on_device.groupby("rank", observed=True)}
    for rank in meta.ranks:
        of_rank: dict[str, Any] = {"spans": int(spans_of.get(rank, 0)), "steps": int(steps_of.get(rank, 0))}
        if rank in device_of:
            of_rank["device"] = device_of[rank]
        result["by_rank"][str(rank)] = of_rank
    return result


def summarize_file(file: str) -> dict[str, Any]:
    """What one file holds, whatever lies beside it."""
    return summarize(open_trace(file, siblings=False))


def merge_summaries(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What several files of a trace hold together; times of different files are not compared.

    Raises:
        TraceError: they are of several formats, or two are of the same rank.
    """
    first = summaries[0]
    formats = sorted({summary["format"] for summary in summaries})
    if len(formats) > 1:
        raise TraceError(f"these files are of several formats ({', '.join(formats)}): open one kind at a time")
    by_rank: dict[str, Any] = {}
    for summary in summaries:
        for rank, described in summary["by_rank"].items():
            if rank in by_rank:
                raise TraceError(
                    f"{summary['files'][0]}: rank {rank} is in another file as well; open one run at a time"
                )
            by_rank[rank] = described
    ranks = sorted(map(int, by_rank))
    dropped: Counter[str] = sum((Counter(summary["dropped"]) for summary in summaries), Counter())
    # What a single file says of missing ranks is not true of all of them.
    notes = {note: None for summary in summaries for note in summary["notes"] if "ranks have no" not in note}
    return first | {
        "files": [file for summary in summaries for file in summary["files"]],
        "ranks": ranks,
        "size": max(*(summary["size"] for summary in summaries), len(ranks)),
        "duration_ns": max(summary["duration_ns"] for summary in summaries),
        "dropped": dict(dropped),
        "clock": {"method": "none" if len(ranks) > 1 else first["clock"]["method"], "uncertainty_ns": 0, "ranks": {}},
        "notes": list(notes),
        "tables": {name: sum(summary["tables"][name] for summary in summaries) for name in first["tables"]},
        "lanes": _added(summaries, "lanes", ("lane_kind", "category"), ("spans", "total_ns")),
        "collectives": _added(summaries, "collectives", ("kind", "algorithm"), ("count", "total_ns")),
        "by_rank": {str(rank): by_rank[str(rank)] for rank in ranks},
        **{key: sum(summary[key] for summary in summaries) for key in ("events", "spans")},
    }


def _added(
    summaries: Sequence[dict[str, Any]], name: str, keys: tuple[str, ...], values: tuple[str, ...]
) -> list[dict[str, Any]]:
    totals: dict[tuple[str, ...], list[int]] = {}
    for summary in summaries:
        for row in summary[name]:
            total = totals.setdefault(tuple(row[key] for key in keys), [0] * len(values))
            for position, value in enumerate(values):
                total[position] += row[value]
    return [
        dict(zip(keys, key, strict=True)) | dict(zip(values, total, strict=True))
        for key, total in sorted(totals.items())
    ]


def _grouped(table: pd.DataFrame, keys: list[str], value: str) -> list[tuple[Any, int, int]]:
    if not len(table):
        return []
    grouped = table.groupby(keys, observed=True)[value].agg(["size", "sum"])
    return [(key, int(row[0]), int(row[1])) for key, row in zip(grouped.index, grouped.to_numpy(), strict=True)]
