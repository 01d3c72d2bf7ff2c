"""sqlite exports of Nsight Systems (`nsys export --type sqlite`), schema 2022 to 2026.

Tables are there only if they have rows, and columns come and go between versions: each is asked for before it is read.  Every
process that did something on a device, or pushed NVTX ranges, is a rank.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pandas as pd

from ..errors import TraceError
from ..model.columns import TableBuilder, assemble
from ..model.trace import (
    ARRIVAL_COLUMNS,
    COUNTER_COLUMNS,
    SPAN_COLUMNS,
    STEP_COLUMNS,
    TENSOR_COLUMNS,
    Clock,
    Trace,
    TraceMeta,
)
from ..read.source import Source
from ..vocabulary import NEGOTIATE_PREFIX, OPTIMIZER_STEP, STEP, SYNCHRONIZE, Category, LaneKind
from .base import Progress
from .nsys_database import PID_SHIFT, Call, Export, Operation, Spans, Tables, lane_of, opened, thread_names, whole
from .nsys_device import read_device, shows_device
from .nsys_payloads import NcclPayloads
from .nsys_ranges import CAPITALS, range_of_ours
from .nsys_tables import columns_of, make_collectives, make_launches, ranks_of

NAME: Final = "nsys"

#: An export has one of these tables.
MARKS: Final = frozenset({"META_DATA_EXPORT", "EXPORT_META_DATA", "StringIds", "NVTX_EVENTS"})
_MAGIC: Final = b"SQLite format 3\0"
STEP_RANGE: Final = re.compile(rf"^(?:ProfilerStep\s*#|step[ _#]?|iteration[ _#]?|{STEP}\D?)(\d*)$", re.IGNORECASE)

#: What torch's emit_nvtx puts behind the name of an operator.
_NUMBERED: Final = re.compile(r", (?:op_id|seq|sizes|input_op_ids) = .*$", re.DOTALL)

_PUSH_POP, _START_END = 59, 60


def sniff(head: bytes) -> bool:
    """An sqlite database; whether it is one of Nsight Systems is seen when it is read."""
    return head.startswith(_MAGIC)


def _process_of(thread: np.ndarray) -> np.ndarray:
    """The globalPid out of a globalTid, whose lower 24 bits are the thread."""
    return thread >> PID_SHIFT << PID_SHIFT


def _read_export(source: Source) -> Export:
    with opened(source) as database:
        if not database.tables & MARKS:
            raise TraceError(f"{source.path} is an sqlite database, but no export of Nsight Systems")
        return export_of(database, source)


def export_of(database: Tables, source: Source) -> Export:
    """What the tables of an export hold.

    Raises:
        TraceError: they are damaged.
    """
    strings = dict(zip(*database.read("StringIds", ("id", "value")), strict=True))
    (epoch,) = database.read("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))
    export = Export(source, int(epoch[0]) if epoch and epoch[0] else 0)
    threads = thread_names(database, strings)
    _read_runtime(database, export, strings, threads)
    payloads = NcclPayloads(database)
    _read_nvtx(database, export, strings, threads, payloads)
    read_device(database, export, strings)
    export.collectives = [
        collective if collective.nbytes >= 0 else collective._replace(nbytes=nbytes)
        for collective, nbytes in zip(export.collectives, payloads.sizes(export), strict=True)
    ]
    _read_metrics(database, export)
    return export


def _read_runtime(database: Tables, export: Export, strings: dict[int, str], threads: dict[int, str]) -> None:
    """Calls of the host: CUDA, and the operating system."""
    has_device = shows_device(database)
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "OSRT_API"):
        start, end, thread, correlation, name = database.read(
            table, ("start", "end", "globalTid", "correlationId", "nameId")
        )
        if not start:
            continue
        starts, ends, tids = whole(start), whole(end), whole(thread)
        ends = np.where(ends < starts, starts, ends)
        process = _process_of(tids)
        if table == "CUPTI_ACTIVITY_KIND_RUNTIME":
            calls = [
                Call(begin, finish - begin, lane_of(threads, number), number)
                for begin, finish, number in zip(starts.tolist(), ends.tolist(), tids.tolist(), strict=True)
            ]
            keys = zip(process.tolist(), whole(correlation).tolist(), strict=True)
            export.launches.update(zip(keys, calls, strict=True))
        export.events += len(start)
        count = len(start)
        export.spans.append(
            Spans(
                process,
                starts,
                ends,
                [strings.get(number, "") for number in name],
                [lane_of(threads, number) for number in tids.tolist()],
                [LaneKind.HOST if has_device else LaneKind.OTHER] * count,
                [Category.OTHER] * count,
            )
        )


def _read_nvtx(
    database: Tables, export: Export, strings: dict[int, str], threads: dict[int, str], payloads: NcclPayloads
) -> None:
    """Ranges that the program pushed, and the steps among them."""
    start, end, kind, text, text_id, thread, payload, binary, json_text, json_id = database.read(
        "NVTX_EVENTS",
        (
            "start", "end", "eventType", "text", "textId", "globalTid", "int64Value", "binaryData", "jsonText", "jsonTextId",
        ),
    )  # fmt: skip
    export.events += len(start)
    rows = [
        row
        for row, (number, finish) in enumerate(zip(kind, end, strict=True))
        if number in {_PUSH_POP, _START_END} and finish is not None and start[row] is not None
    ]
    unfinished = sum(number in {_PUSH_POP, _START_END} for number in kind) - len(rows)
    if unfinished:
        export.source.dropped["unclosed_begin"] += unfinished
    if not rows:
        return
    names = [_NUMBERED.sub("", text[row] if text[row] is not None else strings.get(text_id[row], "")) for row in rows]
    starts, ends = whole([start[row] for row in rows]), whole([end[row] for row in rows])
    tids = whole([thread[row] for row in rows])
    for name, row in zip(names, rows, strict=True):
        if binary[row] is not None or json_text[row] is not None or json_id[row] is not None:
            text_of = json_text[row] if json_text[row] is not None else strings.get(json_id[row])
            payloads.note(name, start[row], thread[row], binary[row], text_of)
    process = _process_of(tids)
    has_device = shows_device(database)
    kinds, categories = [], []
    for name in names:
        kind_of_lane, category = range_of_ours(name)
        kinds.append(LaneKind.HOST if has_device else kind_of_lane)
        categories.append(category)
    export.spans.append(
        Spans(
            process,
            starts,
            np.maximum(ends, starts),
            names,
            [f"NVTX {lane_of(threads, number)}" for number in tids.tolist()],
            kinds,
            categories,
        )
    )
    if not has_device:
        waiting = np.array([row for row, name in enumerate(names) if name == SYNCHRONIZE], np.int64)
        if len(waiting):
            export.spans.append(_waits(process[waiting], starts[waiting], ends[waiting]))
        asked = _asked_by(process, starts, waiting, ends)
        export.collectives += [
            Operation(
                process=int(process[at]),
                kind=name.lower(),
                launched=asked(int(process[at]), int(starts[at])),
                start=int(starts[at]),
                end=int(ends[at]),
                nbytes=-1 if payload[row] is None else int(payload[row]),
            )
            for at, (row, name) in enumerate(zip(rows, names, strict=True))
            if name in CAPITALS
        ]
    updates = np.sort(starts[[name == OPTIMIZER_STEP for name in names]])

    def updated(begin: int, finish: int) -> bool:
        """Whether the parameters were: the last range of ours is open until the program ends, and is no step."""
        return not len(updates) or int(np.searchsorted(updates, begin)) < int(np.searchsorted(updates, finish))

    for position, (row, name) in enumerate(zip(rows, names, strict=True)):
        match = STEP_RANGE.match(name)
        if match and (name != STEP or updated(int(starts[position]), int(ends[position]))):
            number = int(match[1]) if match[1] and len(match[1]) < 18 else payload[row]  # noqa: PLR2004  64 bits
            number = len(export.steps) if number is None else int(number)
            export.steps.append((int(process[position]), number, int(starts[position]), int(ends[position])))


def _asked_by(
    process: np.ndarray, starts: np.ndarray, waiting: np.ndarray, ends: np.ndarray
) -> Callable[[int, int], int]:
    """When a rank had asked for a collective at the latest: when it began to wait.

    The collective itself begins on all ranks at once, when they have agreed, which says nothing of who came last.

    Args:
        waiting: rows that are waits.

    Returns:
        From a process and the start of a collective (ns) to that time, or to the start where nothing waited.
    """
    waits: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for pid in np.unique(process[waiting]).tolist():
        rows = waiting[process[waiting] == pid]
        rows = rows[np.argsort(starts[rows], kind="stable")]
        waits[pid] = starts[rows], ends[rows]

    def asked(pid: int, start: int) -> int:
        if pid not in waits:
            return start
        begun, over = waits[pid]
        last = int(np.searchsorted(begun, start, side="right")) - 1
        return int(begun[last]) if last >= 0 and start < over[last] else start

    return asked


def _waits(process: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> Spans:
    """A training that is blocked while no collective runs waits until it is agreed what to reduce.

    Negotiation is no range of a thread, so that NVTX does not show it; this is how it shows nevertheless.
    """
    count = len(starts)
    return Spans(
        process,
        starts,
        np.maximum(ends, starts),
        [f"{NEGOTIATE_PREFIX}ALLREDUCE"] * count,
        ["communication"] * count,
        [LaneKind.COMMUNICATION] * count,
        [Category.NEGOTIATE] * count,
    )


def _read_metrics(database: Tables, export: Export) -> None:
    type_id, metric_id, name = database.read("TARGET_INFO_GPU_METRICS", ("typeId", "metricId", "metricName"))
    names = dict(zip(zip(type_id, metric_id, strict=True), name, strict=True))
    times, types, metrics, values = database.read("GPU_METRICS", ("timestamp", "typeId", "metricId", "value"))
    export.events += len(times)
    for at, kind, metric, value in zip(times, types, metrics, values, strict=True):
        if at is not None and value is not None:
            device = int(kind or 0) & 0xFF
            full = names.get((kind, metric)) or f"metric {metric}"
            export.counters.append((f"GPU {device} {full}", int(at), float(value)))


def read(sources: Sequence[Source], progress: Progress) -> Trace:
    """Read the exports of a job.

    Raises:
        TraceError: one is damaged, or there is nothing in them.
    """
    exports = []
    for number, source in enumerate(sources):
        exports.append(_read_export(source))
        progress(number + 1, len(sources))
    return trace_of(exports, NAME, "profile with nsys profile -t cuda,nvtx")


def trace_of(exports: Sequence[Export], name_of_format: str, advice: str) -> Trace:
    """The tables of a job out of what was read of its files.

    Args:
        advice: how to profile so that there is something in them.

    Raises:
        TraceError: there is nothing in them.
    """
    ranks = ranks_of(exports)
    if not ranks:
        raise TraceError(f"{exports[0].source.path} holds no ranges and no work of a device: {advice}")
    # Reports of one job count from their own starts; the wall clock of the start brings them together.
    base = min(export.epoch_ns for export in exports)
    shift = {id(export): export.epoch_ns - base for export in exports}
    origin = min(int(spans.start.min()) + shift[id(export)] for export in exports for spans in export.spans)
    parts, steps, rows = [], [], []
    counters = TableBuilder(COUNTER_COLUMNS)
    for export in exports:
        moved = shift[id(export)] - origin
        parts += [columns_of(spans, export, ranks, moved) for spans in export.spans]
        for pid, number, start, end in export.steps:
            if (id(export), pid) in ranks:
                steps.append((ranks[id(export), pid], number, start + moved, end + moved))
        for pid, kind, launched, start, end, nbytes, _ in export.collectives:
            if (id(export), pid) not in ranks:
                continue
            at = launched + moved if launched >= 0 else -1
            rows.append((ranks[id(export), pid], kind, at, start + moved, end - start, nbytes))
        for name, at, value in export.counters:
            counters.add(
                min(rank for (owner, _), rank in ranks.items() if owner == id(export)), name, at + moved, value
            )
    collectives = make_collectives(rows)
    arrivals = collectives[["process_set", "seq", "rank"]].assign(
        arrival_ns=collectives["submitted_ns"].where(collectives["submitted_ns"] >= 0, collectives["start_ns"])
    )
    spans = assemble(SPAN_COLUMNS, [part for part in parts if len(part["rank"])])
    known = {Category(text) for text in spans["category"].unique()} - {Category.OTHER}
    table = pd.DataFrame(sorted(steps), columns=list(STEP_COLUMNS)).astype(STEP_COLUMNS)
    numbers = sorted(set(ranks.values()))
    return Trace(
        meta=TraceMeta(
            format=name_of_format,
            files=tuple(str(export.source.path) for export in exports),
            ranks=tuple(numbers),
            size=max(len(numbers), numbers[-1] + 1),
            events=sum(export.events for export in exports),
            dropped=dict(sum((export.source.dropped for export in exports), Counter())),
            clock=Clock(method="single" if len(exports) == 1 else "none", uncertainty_ns=0),
            known_categories=frozenset(known),
            notes=("ranks are the processes that used a device or pushed ranges, in the order of their devices",)
            if len(exports) == 1 and len(numbers) > 1
            else (),
            epoch_unix_ns=base + origin if base else 0,
        ),
        spans=spans,
        collectives=collectives,
        tensors=TableBuilder(TENSOR_COLUMNS).finish(),
        arrivals=arrivals.astype(ARRIVAL_COLUMNS).reset_index(drop=True),
        steps=table,
        counters=counters.finish(),
        launches=make_launches(exports, ranks, {key: moved - origin for key, moved in shift.items()}),
    )
