"""What devices did, in an export of Nsight Systems: kernels, copies, fills, and graphs as a whole."""

import re
from typing import Any, Final

import numpy as np

from ..vocabulary import Category, LaneKind
from .kineto_tables import kind_of
from .nsys_database import Call, Export, Operation, Spans, Tables, whole
from .nsys_ranges import PHASES

#: Tables of what a device does.  Graphs come last: where their parts are shown, they are not shown as a whole.
TABLES: Final = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")

NCCL: Final = re.compile(r"nccl|rccl", re.IGNORECASE)
_HOST_TO_DEVICE: Final = 1
_COPIES: Final = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
#: Instead of a device, where a graph begins on the host (CUpti_ActivityGraphTrace2).
_ON_HOST: Final = 2**31 - 1


def shows_device(database: Tables) -> bool:
    """Whether the export shows what a device did."""
    return any(database.columns_of(f"CUPTI_ACTIVITY_KIND_{table}") for table in ("KERNEL", "GRAPH_TRACE"))


def _timed_graphs(read: list[list[Any]], export: Export) -> list[list[Any]]:
    """Replays of graphs whose parts are not shown, and whose times could be taken: 0 means that they could not."""
    start, end, process, correlation = read[0], read[1], read[5], read[4]
    shown = {(pid, number) for pid, _, call, number in export.launched if call is not None}
    kept = []
    for row, (begun, ended) in enumerate(zip(start, end, strict=True)):
        if (process[row], correlation[row]) in shown:
            continue
        if begun and ended:
            kept.append(row)
        else:
            export.source.dropped["no_time"] += 1
    return [[column[row] for row in kept] for column in read]


def _thread_of(call: Call | None) -> int:
    return -1 if call is None else call.thread


def read_device(database: Tables, export: Export, strings: dict[int, str]) -> None:
    """Kernels, copies, fills and replays of graphs, and the collectives among the kernels."""
    columns = (
        "start",
        "end",
        "deviceId",
        "streamId",
        "correlationId",
        "globalPid",
        "demangledName",
        "shortName",
        "copyKind",
        "graphId",
    )
    phases = phases_of(export)
    for table in TABLES:
        read = database.read(f"CUPTI_ACTIVITY_KIND_{table}", columns)
        if table == "GRAPH_TRACE":
            read = _timed_graphs(read, export)
        start, end, device, stream, correlation, process, long_name, short_name, copy, graph = read
        if not start:
            continue
        export.events += len(start)
        starts, ends = whole(start), whole(end)
        ends = np.where(ends < starts, starts, ends)
        pids, streams = whole(process, _only_process(export)), whole(stream)
        correlations = whole(correlation)
        calls = [export.launches.get(key) for key in zip(pids.tolist(), correlations.tolist(), strict=True)]
        launched = whole([None if call is None else call.start for call in calls])
        export.launched += zip(pids.tolist(), starts.tolist(), calls, correlations.tolist(), strict=True)
        for pid, number in zip(pids.tolist(), whole(device, 0).tolist(), strict=True):
            if number != _ON_HOST:
                export.device_of.setdefault(pid, number)
        if table == "KERNEL":
            names = [strings.get(a, "") or strings.get(b, "") for a, b in zip(long_name, short_name, strict=True)]
        elif table == "MEMCPY":
            names = [f"Memcpy {_COPIES.get(number, '')}".rstrip() for number in copy]
        elif table == "GRAPH_TRACE":
            names = [f"CUDA graph {number}" for number in whole(graph).tolist()]
        else:
            names = ["Memset"] * len(start)
        is_nccl = [table == "KERNEL" and NCCL.search(name) is not None for name in names]
        categories = [
            Category.COLLECTIVE
            if nccl
            else Category.H2D
            if number == _HOST_TO_DEVICE and table == "MEMCPY"
            else phase_at(phases, pid, at)
            for nccl, number, pid, at in zip(is_nccl, copy, pids.tolist(), launched.tolist(), strict=True)
        ]
        export.spans.append(
            Spans(
                pids,
                starts,
                ends,
                names,
                [f"stream {number}" for number in streams.tolist()],
                [LaneKind.COMMUNICATION if nccl else LaneKind.COMPUTE for nccl in is_nccl],
                categories,
            )
        )
        export.collectives += [
            Operation(
                process=int(pids[row]),
                kind=kind_of(names[row]),
                launched=int(launched[row]),
                start=int(starts[row]),
                end=int(ends[row]),
                thread=_thread_of(calls[row]),
            )
            for row, nccl in enumerate(is_nccl)
            if nccl
        ]


def _only_process(export: Export) -> int:
    """Whose device's work is where the table does not say: that of the only process that called the device."""
    processes = {process for process, _ in export.launches}
    return processes.pop() if len(processes) == 1 else -1


Phases = dict[int, tuple[np.ndarray, np.ndarray, list[Category]]]
"""By globalPid: starts and ends of ranges that say what the host is about, ascending, and what."""


def phases_of(export: Export) -> Phases:
    """The ranges of an export that say what the host is about."""
    found: dict[int, list[tuple[int, int, Category]]] = {}
    for spans in export.spans:
        for pid, start, end, name in zip(
            spans.process.tolist(), spans.start.tolist(), spans.end.tolist(), spans.names, strict=True
        ):
            if name in PHASES:
                found.setdefault(pid, []).append((start, end, PHASES[name]))
    return {
        pid: (
            np.array([start for start, _, _ in sorted(ranges)]),
            np.array([end for _, end, _ in sorted(ranges)]),
            [category for _, _, category in sorted(ranges)],
        )
        for pid, ranges in found.items()
    }


def phase_at(phases: Phases, process: int, at_ns: int) -> Category:
    """What the host of a process was about at a time; `other` where that is unknown."""
    if at_ns < 0 or process not in phases:
        return Category.OTHER
    starts, ends, categories = phases[process]
    position = int(np.searchsorted(starts, at_ns, side="right")) - 1
    return categories[position] if position >= 0 and at_ns < ends[position] else Category.OTHER
