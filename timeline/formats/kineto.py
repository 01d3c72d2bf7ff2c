"""Traces of the PyTorch profiler (Kineto): one file a rank, on CPUs, NVIDIA and AMD GPUs, MTIA.

What happens on a device is put on the lanes of compute and communication, and what happens on the host on lanes of its own: with
a GPU the host only hands out work.  In a trace without a device the host's threads are the lanes of compute.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from ..args import FileArgs
from ..columns import TableBuilder, assemble
from ..errors import TraceError
from ..scanning import Events, scan
from ..source import Source
from ..trace import (
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
from ..vocabulary import DTYPE_NBYTES, Category, LaneKind
from .base import Progress, count_up

NAME: Final = "kineto"

_DEVICE: Final = {
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "memcpy",
    "memset",
    "mtia_ccp_events",
    "hpu_op",
    "privateuse1_kernel",
}
_MEMORY: Final = {"gpu_memcpy", "gpu_memset", "memcpy", "memset"}
_RUNTIME: Final = {"cuda_runtime", "cuda_driver", "runtime", "mtia_runtime", "hip_runtime", "privateuse1_runtime"}
_LEFT_OUT: Final = {"trace"}

_INTEGERS: Final = ("correlation", "In msg nelems", "Group size", "bytes")
_TEXTS: Final = ("stream", "device", "Collective name", "dtype", "Process Group Name", "name")

_STEP: Final = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_RANK_IN_NAME: Final = re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE)
_NCCL: Final = re.compile(r"nccl|rccl|oneccl|mscclpp", re.IGNORECASE)
_HOST_COLLECTIVE: Final = re.compile(r"^(gloo|nccl|mpi|ucc|xccl|hccl):(.*)")
_DATA: Final = re.compile(r"^enumerate\(DataLoader\)|^DataLoader|dataloader.*__next__", re.IGNORECASE)
_OPTIMIZER: Final = re.compile(r"^Optimizer\.step#|^## optimizer ##$|^Optimizer\.zero_grad#")
_BACKWARD: Final = re.compile(r"^autograd::engine::evaluate_function|^## backward ##$")

#: Element types as Kineto names them.
_DTYPE_NAMES: Final = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "int": "int32",
    "long": "int64",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
    "bool": "bool",
}
_KINDS: Final = (
    ("allreduce", re.compile(r"all_?reduce", re.IGNORECASE)),
    ("allgather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("reducescatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    ("alltoall", re.compile(r"all_?to_?all", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast", re.IGNORECASE)),
    ("barrier", re.compile(r"barrier", re.IGNORECASE)),
    ("reduce", re.compile(r"reduce", re.IGNORECASE)),
    ("sendrecv", re.compile(r"send|recv", re.IGNORECASE)),
)


def sniff(head: bytes) -> bool:
    """An object with `traceEvents` and what only Kineto writes beside or in them."""
    if b'"traceEvents"' not in head and b'"deviceProperties"' not in head:
        return False
    marks = (b'"deviceProperties"', b'"schemaVersion"', b'"distributedInfo"', b'"cpu_op"', b'"baseTimeNanoseconds"')
    return any(mark in head for mark in marks)


def kind_of(name: str) -> str:
    """The kind of a collective out of the name of its kernel or call; "other" if the name does not tell."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")


@dataclass(slots=True)
class _Rank:
    """The events of one file, told apart."""

    source: Source
    events: Events
    rank: int
    size: int
    base_ns: int
    rows: np.ndarray
    """Complete events, by time."""
    is_device: np.ndarray
    """Of `rows`."""
    is_communication: np.ndarray
    category: np.ndarray
    """Of `rows`, as numbers of `_CATEGORIES`."""
    launched_ns: np.ndarray
    """Of `rows`: when the host handed out a device's work; -1 if unknown."""


_CATEGORIES: Final = tuple(str(category) for category in Category)
_NUMBER: Final = {category: number for number, category in enumerate(_CATEGORIES)}


def _matching(texts: Sequence[str], pattern: re.Pattern[str]) -> np.ndarray:
    """Which texts the pattern is found in."""
    return np.array([pattern.search(text) is not None for text in texts] or [False], bool)


def _among(texts: Sequence[str], names: set[str]) -> np.ndarray:
    return np.array([text.lower() in names for text in texts] or [False], bool)


def _metadata(events: Events) -> dict[str, Any]:
    """What stands around the array of events."""
    try:
        found = json.loads(events.before + b"]" + (events.after or b"}"), strict=False)
    except (ValueError, RecursionError):
        found = {}
        for key in ("distributedInfo", "baseTimeNanoseconds"):
            for text in (events.before, events.after):
                match = re.search(rb'"' + key.encode() + rb'"\s*:\s*', text)
                if match:
                    try:
                        found[key] = json.JSONDecoder(strict=False).raw_decode(
                            text[match.end() :].decode("utf-8", "replace")
                        )[0]
                    except (ValueError, RecursionError):
                        continue
    return found if isinstance(found, dict) else {}


def _integer(value: Any, default: int) -> int:
    return value if isinstance(value, int) and abs(value) < 2**62 else default


def _inside(times: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Which times lie in one of the intervals, which may overlap."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order]) if len(ends) else ends
    position = np.searchsorted(starts, times, side="right") - 1
    return (position >= 0) & (times < ends[np.maximum(position, 0)]) if len(starts) else np.zeros(len(times), bool)


def _tell_apart(source: Source, events: Events, fallback_rank: int) -> _Rank:
    metadata = _metadata(events)
    distributed = metadata.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    in_name = _RANK_IN_NAME.search(source.path.name)
    rank = _integer(distributed.get("rank"), int(in_name[1]) if in_name else fallback_rank)
    categories, names = events.texts["category"], events.texts["name"]
    is_left_out = _among(categories, _LEFT_OUT)[events.category]
    is_span = (events.phase == ord("X")) & (events.duration >= 0) & ~is_left_out
    impossible = int(((events.phase == ord("X")) & (events.duration < 0)).sum())
    if impossible:
        source.dropped["impossible_time"] += impossible
    rows = np.flatnonzero(is_span)
    name, category = events.name[rows], events.category[rows]
    is_device = _among(categories, _DEVICE)[category]
    is_memory = _among(categories, _MEMORY)[category]
    starts = events.start[rows]
    ends = starts + events.duration[rows]
    threads = events.thread[rows].astype(np.int64) << 32 | events.process[rows]

    launched = _launch_times(events, rows, is_device, _among(categories, _RUNTIME)[category], starts)
    numbers = np.full(len(rows), _NUMBER[Category.OTHER], np.int8)
    is_backward = _matching(names, _BACKWARD)[name] & ~is_device
    is_optimizer = _matching(names, _OPTIMIZER)[name] & ~is_device
    is_data = _matching(names, _DATA)[name] & ~is_device
    is_host_collective = _matching(names, _HOST_COLLECTIVE)[name] & ~is_device
    is_nccl = _matching(names, _NCCL)[name] & is_device & ~is_memory
    is_communication = is_nccl
    has_device = bool(is_device.any())
    is_operator = ~is_device & _among(categories, {"cpu_op", "operator"})[category]
    if not has_device:
        is_communication = is_host_collective
        numbers[is_operator] = _NUMBER[Category.FORWARD]
        numbers[is_operator & _on_same_thread(threads, starts, is_backward, ends)] = _NUMBER[Category.BACKWARD]
    numbers[is_backward] = _NUMBER[Category.BACKWARD]
    numbers[is_optimizer] = _NUMBER[Category.OPTIMIZER]
    numbers[is_data] = _NUMBER[Category.DATA]
    if has_device:
        # Work on the device belongs to what the host was about when it handed it out.
        told = is_device & (launched.times >= 0)
        numbers[told] = _NUMBER[Category.FORWARD]
        by_backward = np.zeros(len(rows), bool)
        for thread in np.unique(threads[is_backward]):
            of_thread = told & (launched.threads == thread)
            mine = is_backward & (threads == thread)
            by_backward[of_thread] = _inside(launched.times[of_thread], starts[mine], ends[mine])
        numbers[by_backward] = _NUMBER[Category.BACKWARD]
        in_optimizer = told & _inside(launched.times, starts[is_optimizer], ends[is_optimizer])
        numbers[in_optimizer & ~by_backward] = _NUMBER[Category.OPTIMIZER]
        to_device = _matching(names, re.compile(r"HtoD|Host -> Device", re.IGNORECASE))[name] & is_memory
        numbers[to_device] = _NUMBER[Category.H2D]
    numbers[is_communication] = _NUMBER[Category.COLLECTIVE]
    return _Rank(
        source=source,
        events=events,
        rank=rank,
        size=_integer(distributed.get("world_size"), 0),
        base_ns=_integer(metadata.get("baseTimeNanoseconds"), 0),
        rows=rows,
        is_device=is_device,
        is_communication=is_communication,
        category=numbers,
        launched_ns=launched.times,
    )


def _on_same_thread(threads: np.ndarray, starts: np.ndarray, chosen: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Which spans begin inside a chosen span of the same thread."""
    result = np.zeros(len(threads), bool)
    for thread in np.unique(threads[chosen]):
        mine = threads == thread
        result[mine] = _inside(starts[mine], starts[mine & chosen], ends[mine & chosen])
    return result


@dataclass(slots=True)
class _Launches:
    times: np.ndarray
    threads: np.ndarray


def _launch_times(
    events: Events, rows: np.ndarray, is_device: np.ndarray, is_runtime: np.ndarray, starts: np.ndarray
) -> _Launches:
    """When, and on which thread, the host handed out each span of a device; -1 where that is not told."""
    correlation = events.dense("correlation")[rows]
    times = np.full(len(rows), -1, np.int64)
    threads = np.full(len(rows), -1, np.int64)
    callers = np.flatnonzero(is_runtime & (correlation > 0))
    if len(callers):
        callers = callers[np.argsort(correlation[callers], kind="stable")]
        keys = correlation[callers]
        device = np.flatnonzero(is_device & (correlation > 0))
        position = np.minimum(np.searchsorted(keys, correlation[device]), len(keys) - 1)
        found = keys[position] == correlation[device]
        caller = callers[position[found]]
        times[device[found]] = starts[caller]
        threads[device[found]] = events.thread[rows[caller]].astype(np.int64) << 32 | events.process[rows[caller]]
    return _Launches(times, threads)


def read(sources: Sequence[Source], progress: Progress) -> Trace:
    """Read the files of a job, one a rank.

    Raises:
        TraceError: they hold no spans, or two files are of the same rank.
    """
    on_progress = count_up(sources, progress)
    ranks: list[_Rank] = []
    for number, source in enumerate(sources):
        events = scan(source, integers=_INTEGERS, texts=_TEXTS, progress=on_progress)
        ranks.append(_tell_apart(source, events, number))
    ranks.sort(key=lambda item: item.rank)
    doubled = [rank for rank, count in Counter(item.rank for item in ranks).items() if count > 1]
    if doubled:
        names = ", ".join(item.source.path.name for item in ranks if item.rank == doubled[0])
        raise TraceError(f"{names}: these files are all of rank {doubled[0]}; open one run at a time")
    if not any(len(item.rows) for item in ranks):
        raise TraceError(f"{sources[0].path} holds no spans: was the profiler stopped before its first step?")
    origin_ns = min(int((item.events.start[item.rows] + item.base_ns).min()) for item in ranks if len(item.rows))
    spans = _spans(ranks, origin_ns)
    collectives = _collectives(ranks, origin_ns)
    arrivals = collectives[["process_set", "seq", "rank"]].assign(
        arrival_ns=collectives["submitted_ns"].where(collectives["submitted_ns"] >= 0, collectives["start_ns"])
    )
    size = max(*(item.size for item in ranks), len(ranks), ranks[-1].rank + 1)
    known = {Category(_CATEGORIES[number]) for item in ranks for number in np.unique(item.category)}
    is_epoch = origin_ns > 10**18
    return Trace(
        meta=TraceMeta(
            format=NAME,
            files=tuple(str(item.source.path) for item in ranks),
            ranks=tuple(item.rank for item in ranks),
            size=size,
            events=sum(len(item.events) for item in ranks),
            dropped=dict(sum((item.source.dropped for item in ranks), Counter())),
            clock=Clock(method="single" if len(ranks) == 1 else "none", uncertainty_ns=0),
            known_categories=frozenset(known - {Category.OTHER}),
            notes=tuple(_notes(ranks, collectives, size)),
            epoch_unix_ns=origin_ns if is_epoch else 0,
        ),
        spans=spans,
        collectives=collectives,
        tensors=TableBuilder(TENSOR_COLUMNS).finish(),
        arrivals=arrivals.astype(ARRIVAL_COLUMNS).reset_index(drop=True),
        steps=_steps(ranks, origin_ns),
        counters=TableBuilder(COUNTER_COLUMNS).finish(),
        raw_args=FileArgs.of_events((item.source, item.events, item.rows) for item in ranks),
    )


def _lanes(item: _Rank) -> tuple[np.ndarray, list[str]]:
    """The lane of each span: a stream of a device, or a thread of the host."""
    events = item.events
    named = events.thread_names()
    stream = events.keys["stream"]
    of_event = np.full(len(events), -1, np.int32)
    of_event[stream.rows] = stream.numbers
    lanes: list[str] = []
    key = np.where(
        item.is_device,
        -2 - of_event[item.rows].astype(np.int64),
        events.thread[item.rows].astype(np.int64) << 31 | events.process[item.rows],
    )
    unique, inverse = np.unique(key, return_inverse=True)
    for value in unique.tolist():
        if value < 0:
            number = -2 - value
            lanes.append(f"stream {stream.texts[number]}" if number >= 0 else "device")
        else:
            thread = events.texts["thread"][value >> 31]
            lanes.append(named.get((value & (2**31 - 1), value >> 31), f"thread {thread}"))
    return inverse.astype(np.int32), lanes


def _spans(ranks: Sequence[_Rank], origin_ns: int) -> pd.DataFrame:
    parts = []
    first = 0
    kinds = [str(kind) for kind in LaneKind]
    number_of = {kind: number for number, kind in enumerate(LaneKind)}
    for item in ranks:
        events, rows = item.events, item.rows
        lane, lanes = _lanes(item)
        host_kind = number_of[LaneKind.HOST] if item.is_device.any() else number_of[LaneKind.COMPUTE]
        kind = np.full(len(rows), host_kind, np.int8)
        on_device = _among(events.texts["category"], {"gpu_user_annotation"})[events.category[rows]]
        kind[on_device] = number_of[LaneKind.OTHER]
        kind[item.is_device] = number_of[LaneKind.COMPUTE]
        kind[item.is_communication] = number_of[LaneKind.COMMUNICATION]
        kind[item.category == _NUMBER[Category.DATA]] = number_of[LaneKind.DATA]
        has_args = events.args_start[rows] != -1
        parts.append(
            {
                "rank": np.full(len(rows), item.rank, np.int32),
                "lane": (lane, lanes),
                "lane_kind": (kind, kinds),
                "category": (item.category, list(_CATEGORIES)),
                "name": (events.name[rows], events.texts["name"]),
                "start_ns": events.start[rows] + (item.base_ns - origin_ns),
                "dur_ns": events.duration[rows],
                "args_row": np.where(has_args, np.arange(first, first + len(rows)), -1),
            }
        )
        first += len(rows)
    return assemble(SPAN_COLUMNS, parts)


def _steps(ranks: Sequence[_Rank], origin_ns: int) -> pd.DataFrame:
    parts: list[dict[str, Any]] = []
    for item in ranks:
        events, rows = item.events, item.rows[~item.is_device]
        number_of = {}
        for number, name in enumerate(events.texts["name"]):
            match = _STEP.search(name)
            if match and len(match[1]) < 18:  # noqa: PLR2004  fits into 64 bits
                number_of[number] = int(match[1])
        categories = events.texts["category"]
        on_device = _among(categories, {"gpu_user_annotation"})[events.category[rows]]
        chosen = rows[np.isin(events.name[rows], list(number_of)) & ~on_device]
        chosen = chosen[np.argsort(events.start[chosen], kind="stable")]
        start = events.start[chosen] + (item.base_ns - origin_ns)
        parts.append(
            {
                "rank": np.full(len(chosen), item.rank, np.int32),
                "step": np.array([number_of[number] for number in events.name[chosen].tolist()], np.int64),
                "start_ns": start,
                "end_ns": start + events.duration[chosen],
            }
        )
    return assemble(STEP_COLUMNS, parts)


def _collectives(ranks: Sequence[_Rank], origin_ns: int) -> pd.DataFrame:
    """One row a collective and rank, numbered in the order of their starts within each process group."""
    group_number: dict[str, int] = {}
    parts = []
    for item in ranks:
        events = item.events
        chosen = np.flatnonzero(item.is_communication)
        chosen = chosen[np.argsort(events.start[item.rows[chosen]], kind="stable")]
        rows = item.rows[chosen]

        def text(key: str, default: str = "", rows: np.ndarray = rows, events: Events = events) -> list[str]:
            return [events.keys[key].text_of(row, default) for row in rows.tolist()]

        names = [events.texts["name"][number] for number in events.name[rows].tolist()]
        kinds = [
            kind_of(told if told not in {"", "wait"} else name)
            for told, name in zip(text("Collective name"), _calls(item, chosen, names), strict=True)
        ]
        groups = [group_number.setdefault(name, len(group_number)) for name in text("Process Group Name")]
        dtypes = [_DTYPE_NAMES.get(name.lower(), name.lower()) for name in text("dtype")]
        elements = events.dense("In msg nelems")[rows]
        sizes = np.array([DTYPE_NBYTES.get(name, 0) for name in dtypes], np.int64)
        process_set = np.array(groups, np.int32)
        seq = np.zeros(len(rows), np.int64)
        for group in np.unique(process_set):
            mine = process_set == group
            seq[mine] = np.arange(int(mine.sum()))
        launched = item.launched_ns[chosen]
        shift = item.base_ns - origin_ns
        algorithms = [
            "nccl" if on_device else name.partition(":")[0]
            for on_device, name in zip(item.is_device[chosen], names, strict=True)
        ]
        parts.append(
            {
                "rank": np.full(len(rows), item.rank, np.int32),
                "process_set": process_set,
                "seq": seq,
                "kind": _encoded(kinds),
                "op": _encoded([""] * len(rows)),
                "dtype": _encoded(dtypes),
                "algorithm": _encoded(algorithms),
                "nbytes": np.where((elements >= 0) & (sizes > 0), elements * sizes, -1),
                "tensors": np.ones(len(rows), np.int32),
                "submitted_ns": np.where(launched >= 0, launched + shift, -1),
                "negotiated_ns": np.full(len(rows), -1, np.int64),
                "start_ns": events.start[rows] + shift,
                "dur_ns": events.duration[rows],
                "copy_ns": np.zeros(len(rows), np.int64),
            }
        )
    return assemble(COLLECTIVE_COLUMNS, parts)


def _calls(item: _Rank, chosen: np.ndarray, names: Sequence[str]) -> list[str]:
    """What tells the kind of each collective best: the call that launched it, else the kernel's own name."""
    events = item.events
    is_call = _matching(events.texts["name"], _HOST_COLLECTIVE)[events.name[item.rows]] & ~item.is_device
    calls = item.rows[is_call]
    calls = calls[np.argsort(events.start[calls], kind="stable")]
    if not len(calls):
        return list(names)
    launched = item.launched_ns[chosen]
    position = np.searchsorted(events.start[calls], launched, side="right") - 1
    call = calls[np.maximum(position, 0)]
    told = (position >= 0) & (launched < events.start[call] + events.duration[call])
    return [
        events.texts["name"][events.name[row]] if is_told else name
        for row, is_told, name in zip(call.tolist(), told.tolist(), names, strict=True)
    ]


def _encoded(values: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int32)
    return codes, list(numbers)


def _notes(ranks: Sequence[_Rank], collectives: pd.DataFrame, size: int) -> list[str]:
    notes = []
    if size > len(ranks):
        notes.append(f"{size - len(ranks)} of {size} ranks have no file here")
    if size > 1 and not len(collectives):
        notes.append(
            "no communication was found though the job has several ranks: its kernels may have names that are not known "
            "(they are known by `nccl` or `rccl` in the name)"
        )
    if not any(item.size for item in ranks):
        notes.append("no distributedInfo: ranks are taken from file names, the number of ranks is a guess")
    return notes
