"""Any other file in the Chrome trace format: its spans and counters, as they are."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ..errors import TraceError
from ..model.columns import TableBuilder, assemble
from ..model.trace import (
    ARRIVAL_COLUMNS,
    COLLECTIVE_COLUMNS,
    COUNTER_COLUMNS,
    SPAN_COLUMNS,
    STEP_COLUMNS,
    TENSOR_COLUMNS,
    Clock,
    Trace,
    TraceMeta,
)
from ..read.args import FileArgs
from ..read.source import Source
from ..scanning import Events, check_proportion, decode_args, scan_all
from ..vocabulary import Category, LaneKind
from .base import Progress, count_up

NAME: Final = "chrome"

#: Counters that are read at a time.
_AT_ONCE: Final = 50_000
#: Larger integers are no floats.
_ENDLESS: Final = 1e300


def sniff(head: bytes) -> bool:
    """An array of objects, or an object with `traceEvents`, with phases in them."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return (start[:1] == b"[" or b'"traceEvents"' in head) and b'"ph"' in head


def read(sources: Sequence[Source], progress: Progress) -> Trace:
    """Read files that belong together, each as one rank.

    Raises:
        TraceError: they hold no spans.
    """
    on_progress = count_up(sources, progress)
    parts: list[dict[str, Any]] = []
    kept = []
    counters = TableBuilder(COUNTER_COLUMNS)
    events_read = first = 0
    scanned = scan_all(sources, lambda _, __, events: events, on_progress, texts=("name",))
    for rank, (source, events) in enumerate(zip(sources, scanned, strict=True)):
        events_read += len(events)
        rows, start, duration = _complete(source, events)
        lane, lanes = _lanes(events, rows)
        args = events.args_start[rows]
        # What `tl-trace merge` has written has ranks for processes and our categories.
        is_ours = b'"writer": "tlkit"' in events.before
        parts.append(
            {
                "rank": _ranks(events, rows) if is_ours else np.full(len(rows), rank, np.int32),
                "lane": (lane, lanes),
                "lane_kind": (np.zeros(len(rows), np.int8), [str(LaneKind.OTHER)]),
                "category": _categories(events, rows),
                "name": (events.name[rows], events.texts["name"]),
                "start_ns": start,
                "dur_ns": duration,
                "args_row": np.where(args != -1, np.arange(first, first + len(rows)), -1),
            }
        )
        first += len(rows)
        kept.append((source, events, rows))
    raw_args = FileArgs.of_events(kept)
    if not first:
        raise TraceError(f"{sources[0].path} holds no spans")
    origin_ns = min(int(part["start_ns"].min()) for part in parts if len(part["start_ns"]))
    for part in parts:
        part["start_ns"] = part["start_ns"] - origin_ns
    for rank, (source, events, _) in enumerate(kept):
        _add_counters(counters, rank, source, events, origin_ns)
    return Trace(
        meta=TraceMeta(
            format=NAME,
            files=tuple(str(source.path) for source in sources),
            ranks=tuple(sorted({int(rank) for part in parts for rank in np.unique(part["rank"])})),
            size=0,
            events=events_read,
            dropped=dict(sum((source.dropped for source in sources), Counter())),
            clock=Clock(method="single" if len(sources) == 1 else "none", uncertainty_ns=0),
            known_categories=frozenset(),
            notes=(
                "the program that wrote this file is unknown: spans are shown as they are, and nothing is diagnosed",
            ),
        ),
        spans=assemble(SPAN_COLUMNS, parts),
        collectives=TableBuilder(COLLECTIVE_COLUMNS).finish(),
        tensors=TableBuilder(TENSOR_COLUMNS).finish(),
        arrivals=TableBuilder(ARRIVAL_COLUMNS).finish(),
        steps=TableBuilder(STEP_COLUMNS).finish(),
        counters=counters.finish(),
        raw_args=raw_args,
    )


def _complete(source: Source, events: Events) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Spans: complete events, and begins with their ends; rows, starts and durations in ns."""
    complete = np.flatnonzero((events.phase == ord("X")) & (events.duration >= 0))
    edges = np.flatnonzero((events.phase == ord("B")) | (events.phase == ord("E")))
    edges = edges[np.argsort(events.start[edges], kind="stable")]
    stacks: dict[tuple[int, int], list[int]] = {}
    begins, ends = [], []
    for row, phase, process, thread in zip(
        edges.tolist(),
        events.phase[edges].tolist(),
        events.process[edges].tolist(),
        events.thread[edges].tolist(),
        strict=True,
    ):
        stack = stacks.setdefault((process, thread), [])
        if phase == ord("B"):
            stack.append(row)
        elif stack:
            begins.append(stack.pop())
            ends.append(row)
        else:
            source.dropped["orphan_end"] += 1
    open_begins = sum(map(len, stacks.values()))
    if open_begins:
        source.dropped["unclosed_begin"] += open_begins
    rows = np.concatenate([complete, np.array(begins, np.int64)])
    start = events.start[rows]
    duration = np.concatenate(
        [events.duration[complete], events.start[np.array(ends, np.int64)] - events.start[np.array(begins, np.int64)]]
    )
    return rows, start, duration


def _ranks(events: Events, rows: np.ndarray) -> np.ndarray:
    """Processes as ranks."""
    of_process = np.array([value if isinstance(value, int) else 0 for value in events.texts["process"]], np.int64)
    ranks: np.ndarray = of_process[events.process[rows]]
    return ranks


def _categories(events: Events, rows: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Categories that are ours, `other` for the rest."""
    known = [str(category) for category in Category]
    number_of = {name: number for number, name in enumerate(known)}
    other = number_of[str(Category.OTHER)]
    mapping = np.array([number_of.get(text, other) for text in events.texts["category"]], np.int8)
    return mapping[events.category[rows]], known


def _lanes(events: Events, rows: np.ndarray) -> tuple[np.ndarray, list[str]]:
    named = events.thread_names()
    key = events.process[rows].astype(np.int64) << 31 | events.thread[rows]
    unique, inverse = np.unique(key, return_inverse=True)
    lanes = []
    for value in unique.tolist():
        process, thread = value >> 31, value & (2**31 - 1)
        lanes.append(
            named.get((process, thread), f"{events.texts['process'][process]}/{events.texts['thread'][thread]}")
        )
    return inverse.astype(np.int32), lanes


def _add_counters(counters: TableBuilder, rank: int, source: Source, events: Events, origin_ns: int) -> None:
    rows = np.flatnonzero(events.phase == ord("C"))
    values = FileArgs.of_events([(source, events, rows)])
    names: set[str] = set()
    for first in range(0, len(rows), _AT_ONCE):
        for number, row in enumerate(rows[first : first + _AT_ONCE].tolist(), start=first):
            name = events.texts["name"][events.name[row]]
            for key, value in decode_args(values[number]).items():
                if isinstance(value, (int, float)) and abs(value) < _ENDLESS:
                    full = name if key in {"value", name} else f"{name}.{key}"
                    names.add(full)
                    counters.add(rank, full, int(events.start[row]) - origin_ns, float(value))
        check_proportion(source, nbytes=0, events=0, texts=len(names))
