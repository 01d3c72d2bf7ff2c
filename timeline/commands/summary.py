"""What a trace holds, in numbers: the base of `tl-trace info`.

Times on a device are counted as Holistic Trace Analysis counts them: busy is the union of all its work, compute the union of its
kernels that neither copy nor communicate, and the rest of busy is no computation; idle is what remains from the first to the
last.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from ..errors import TraceError
from ..model.trace import TABLES, Trace
from ..read.open import open_trace
from ..vocabulary import LaneKind

Intervals = np.ndarray

#: Rows that are looked at at once.
_BLOCK_ROWS: Final = 1 << 20
#: Bits of the lower half of a number.
_HALF: Final = 31
_LOW_BITS: Final = (1 << _HALF) - 1


def union_ns(start: np.ndarray, end: np.ndarray) -> Intervals:
    """Disjoint intervals, ascending, that cover the same; int64[n, 2]."""
    if not len(start):
        return np.zeros((0, 2), np.int64)
    if not (start[1:] >= start[:-1]).all():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        del order
    end = np.maximum.accumulate(end)
    # The last rows of the intervals; each but the first begins behind one.
    lasts = np.flatnonzero(start[1:] > end[:-1])
    return np.stack([start[np.append(0, lasts + 1)], end[np.append(lasts, len(end) - 1)]], axis=1)


def _total(intervals: Intervals) -> int:
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def device_times(spans: pd.DataFrame) -> dict[str, Any]:
    """What one rank's device did; times in ns.

    Args:
        spans: the rank's spans on lanes of compute and communication.
    """
    start, dur = spans["start_ns"].to_numpy(), spans["dur_ns"].to_numpy()
    end = start + dur
    is_communication = _are(spans["lane_kind"], lambda kinds: kinds == str(LaneKind.COMMUNICATION))
    is_memory = _are(spans["name"], lambda names: names.str.match(r"(?i)mem(cpy|set)")) & ~is_communication
    is_compute = ~is_communication & ~is_memory
    busy, compute = union_ns(start, end), union_ns(start[is_compute], end[is_compute])
    communication = union_ns(start[is_communication], end[is_communication])
    either = union_ns(start[~is_memory], end[~is_memory])
    both = _total(compute) + _total(communication) - _total(either)
    whole = int(end.max() - start.min())
    return {
        "kernels": {
            kind: {"count": int(mask.sum()), "total_ns": int(dur[mask].sum())}
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
    result: dict[str, Any] = {
        "schema": "tlkit.trace-info/1",
        "format": meta.format,
        "files": list(meta.files),
        "ranks": list(meta.ranks),
        "size": meta.size,
        "events": meta.events,
        "spans": len(spans),
        "duration_ns": _duration_ns(spans),
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
            {"lane_kind": kind, "category": category, "spans": count, "total_ns": total}
            for (kind, category), count, total in grouped(spans, ("lane_kind", "category"), "dur_ns")
        ],
        "collectives": [
            {"kind": kind, "algorithm": algorithm, "count": count, "total_ns": total}
            for (kind, algorithm), count, total in grouped(trace.collectives, ("kind", "algorithm"), "dur_ns")
        ],
        "by_rank": {},
    }
    steps_of, spans_of, device_of = _by_rank(trace.steps), _by_rank(spans), _device_of(spans)
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


def _blocks(rows: int) -> Iterator[slice]:
    """Parts of columns: of a hundred million spans whatever is computed of all at once takes gigabytes."""
    return (slice(first, first + _BLOCK_ROWS) for first in range(0, rows, _BLOCK_ROWS))


def _duration_ns(spans: pd.DataFrame) -> int:
    start, dur = spans["start_ns"].to_numpy(), spans["dur_ns"].to_numpy()
    ends = [int((start[block] + dur[block]).max()) for block in _blocks(len(spans))]
    return max(ends) - int(start.min()) if ends else 0


def _are(column: "pd.Series[Any]", told: Callable[["pd.Index[str]"], Any]) -> np.ndarray:
    """What is told of the texts of a column, of each row: bool."""
    # Number -1 stands for none, and picks the last one.
    of_text = np.append(np.asarray(told(column.cat.categories), bool), [False])
    of_row: np.ndarray = of_text[column.cat.codes.to_numpy()]
    return of_row


def _device_of(spans: pd.DataFrame) -> dict[int, dict[str, Any]]:
    """What the device of each rank did."""
    kinds = [str(LaneKind.COMPUTE), str(LaneKind.COMMUNICATION)]
    is_device = _are(spans["lane"], lambda lanes: lanes.str.startswith(("stream ", "device")))
    is_device &= _are(spans["lane_kind"], lambda texts: texts.isin(kinds))
    # Not all columns: of a large trace a copy of them takes gigabytes.
    chosen = spans[["rank", "lane_kind", "name", "start_ns", "dur_ns"]][is_device]
    ranks = np.flatnonzero(np.bincount(chosen["rank"].to_numpy())).tolist() if len(chosen) else []
    if len(ranks) == 1:
        return {ranks[0]: device_times(chosen)}
    return {int(str(rank)): device_times(rows) for rank, rows in chosen.groupby("rank", observed=True)}


def _by_rank(table: pd.DataFrame) -> dict[int, int]:
    """How many rows there are of each rank."""
    ranks = table["rank"].to_numpy()
    counts = np.zeros(int(ranks.max(initial=-1)) + 1, np.int64)
    for block in _blocks(len(ranks)):
        counts += np.bincount(ranks[block], minlength=len(counts))
    there = np.flatnonzero(counts)
    return dict(zip(there.tolist(), counts[there].tolist(), strict=True))


def grouped(table: pd.DataFrame, keys: tuple[str, str], value: str) -> list[tuple[tuple[str, str], int, int]]:
    """Rows, and the sum of `value`, for each pair of texts that there is, in the order of these."""
    first, second = (table[key].cat for key in keys)
    # One more for those without a text, number -1, which are counted and left out.
    width = len(second.categories) + 1
    codes, others, values = first.codes.to_numpy(), second.codes.to_numpy(), table[value].to_numpy()
    counts, sums = np.zeros((2, (len(first.categories) + 1) * width), np.int64)
    for block in _blocks(len(table)):
        pairs = (codes[block].astype(np.int64) + 1) * width + others[block] + 1
        counts += np.bincount(pairs, minlength=len(counts))
        # Both halves of a number add up to less than what a float holds exactly.
        for shift, half in ((0, values[block] & _LOW_BITS), (_HALF, values[block] >> _HALF)):
            sums += np.bincount(pairs, half, minlength=len(counts)).astype(np.int64) << shift
    return [
        (
            (str(first.categories[pair // width - 1]), str(second.categories[pair % width - 1])),
            int(counts[pair]),
            int(sums[pair]),
        )
        for pair in np.flatnonzero(counts).tolist()
        if pair >= width and pair % width
    ]
