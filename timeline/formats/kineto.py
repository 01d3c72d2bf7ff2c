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

import msgspec
import numpy as np
import pandas as pd

from ..errors import TraceError
from ..model.columns import TableBuilder
from ..model.trace import (
    ARRIVAL_COLUMNS,
    TENSOR_COLUMNS,
    Clock,
    Trace,
    TraceMeta,
)
from ..read.args import FileArgs
from ..read.merging import Beside
from ..read.source import Source
from ..scanning import Events, scan_all, together
from ..vocabulary import Category
from . import kineto_memory
from .base import Progress, count_up
from .kineto_launches import (
    BACKWARD,
    TRAINING_LOOP,
    Launches,
    assemble_launches,
    find_launches,
    inside,
    launched_by_backward,
)
from .kineto_tables import (
    CATEGORIES,
    HOST_COLLECTIVE,
    NUMBER,
    RankEvents,
    among,
    find_lanes,
    make_collectives,
    make_launches,
    make_spans,
    make_steps,
    rows_matching,
)

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
#: A file with less of the operators that were numbered was filtered; with fewer than so many nobody can say.
FILTERED_RATIO: Final = 0.2
MIN_NUMBERED: Final = 100
_LEFT_OUT: Final = {"trace"}

_INTEGERS: Final = ("correlation", "External id", "In msg nelems", "Group size", "bytes", *kineto_memory.KEYS)
_TEXTS: Final = ("stream", "device", "Collective name", "dtype", "Process Group Name", "name")

_RANK_IN_NAME: Final = re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE)
_NCCL: Final = re.compile(r"nccl|rccl|oneccl|mscclpp", re.IGNORECASE)
_DATA: Final = re.compile(r"^enumerate\(DataLoader\)|^DataLoader|dataloader.*__next__", re.IGNORECASE)
_OPTIMIZER: Final = re.compile(r"^Optimizer\.step#|^## optimizer ##$|^Optimizer\.zero_grad#")
_TO_DEVICE: Final = re.compile(r"HtoD|Host -> Device", re.IGNORECASE)
_REDUCER: Final = re.compile(r"distributed\.ddp\.reducer::|distributed::reducer::")


def sniff(head: bytes) -> bool:
    """An object with `traceEvents` and what only Kineto writes beside or in them."""
    if b'"traceEvents"' not in head and b'"deviceProperties"' not in head:
        return False
    marks = (b'"deviceProperties"', b'"schemaVersion"', b'"distributedInfo"', b'"cpu_op"', b'"baseTimeNanoseconds"')
    return any(mark in head for mark in marks)


def written_beside(source: Source) -> Beside | None:
    """The timeline beside which our handler of torch.profiler wrote a file; None for a file of another's making."""
    match = re.match(rb'\s*{"tlkit": ({[^{}]*}),', source.head())
    if match is None:
        return None
    try:
        return msgspec.json.decode(match[1], type=Beside)
    except msgspec.MsgspecError:
        return None


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


def _rank_and_size(source: Source, metadata: dict[str, Any], fallback_rank: int) -> tuple[int, int]:
    """Which rank of how many a file is of; 0 ranks where it does not say."""
    in_name = _RANK_IN_NAME.search(source.path.name)
    rank, size = int(in_name[1]) if in_name else fallback_rank, 0
    for place, size_name in (("tlkit", "size"), ("distributedInfo", "world_size")):
        told = metadata.get(place)
        if isinstance(told, dict):
            rank, size = _integer(told.get("rank"), rank), _integer(told.get(size_name), size)
    return rank, size


def _integer(value: Any, default: int) -> int:
    return value if isinstance(value, int) and abs(value) < 2**62 else default


@dataclass(slots=True)
class _Named:
    """What the names of the complete events tell of them, bool each; their threads as numbers, and their times."""

    is_backward: np.ndarray
    is_optimizer: np.ndarray
    is_data: np.ndarray
    is_loop: np.ndarray
    is_communication: np.ndarray
    is_to_device: np.ndarray
    threads: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def _tell_by_name(events: Events, rows: np.ndarray, is_device: np.ndarray, starts: np.ndarray) -> _Named:
    names, name = events.texts["name"], events.name[rows]
    categories, category = events.texts["category"], events.category[rows]
    is_host = ~is_device
    is_memory = among(categories, _MEMORY)[category]
    is_communication = rows_matching(names, _NCCL, name) & is_device & ~is_memory
    if not is_device.any():
        is_communication = rows_matching(names, HOST_COLLECTIVE, name)
    is_python = among(categories, {"python_function"})[category]
    return _Named(
        is_backward=rows_matching(names, BACKWARD, name) & is_host & ~is_python,
        is_optimizer=rows_matching(names, _OPTIMIZER, name) & is_host,
        is_data=rows_matching(names, _DATA, name) & is_host,
        is_loop=rows_matching(names, TRAINING_LOOP, name) & is_host,
        is_communication=is_communication,
        is_to_device=rows_matching(names, _TO_DEVICE, name) & is_memory,
        threads=events.thread[rows].astype(np.int64) << 32 | events.process[rows],
        starts=starts,
        ends=starts + events.duration[rows],
    )


def _categories(
    events: Events, rows: np.ndarray, is_device: np.ndarray, named: _Named, launched: Launches
) -> np.ndarray:
    """What each complete event belongs to, as numbers of `CATEGORIES`."""
    numbers = np.full(len(rows), NUMBER[Category.OTHER], np.int8)
    starts, ends, threads = named.starts, named.ends, named.threads
    is_backward, is_optimizer = named.is_backward, named.is_optimizer
    has_device = bool(is_device.any())
    if not has_device:
        is_operator = among(events.texts["category"], {"cpu_op", "operator"})[events.category[rows]]
        numbers[is_operator] = NUMBER[Category.FORWARD]
        # DDP puts reduced gradients back when backward waits for them.
        in_backward = _on_same_thread(threads, starts, is_backward, ends)
        in_backward |= rows_matching(events.texts["name"], _REDUCER, events.name[rows])
        numbers[is_operator & in_backward] = NUMBER[Category.BACKWARD]
        numbers[is_operator & _on_same_thread(threads, starts, is_optimizer, ends)] = NUMBER[Category.OPTIMIZER]
    numbers[is_backward] = NUMBER[Category.BACKWARD]
    numbers[is_optimizer] = NUMBER[Category.OPTIMIZER]
    numbers[named.is_data] = NUMBER[Category.DATA]
    if has_device:
        # Work on the device belongs to what the host was about when it handed it out.
        told = np.flatnonzero(is_device & (launched.times >= 0))
        numbers[told] = NUMBER[Category.FORWARD]
        by_backward = launched_by_backward(launched, is_backward, starts, ends, threads, named.is_loop)
        numbers[by_backward] = NUMBER[Category.BACKWARD]
        in_optimizer = told[inside(launched.times[told], starts[is_optimizer], ends[is_optimizer])]
        numbers[in_optimizer[~by_backward[in_optimizer]]] = NUMBER[Category.OPTIMIZER]
        numbers[named.is_to_device] = NUMBER[Category.H2D]
    numbers[named.is_communication] = NUMBER[Category.COLLECTIVE]
    return numbers


def _tell_apart(source: Source, events: Events, fallback_rank: int) -> RankEvents:
    metadata = _metadata(events)
    rank, size = _rank_and_size(source, metadata, fallback_rank)
    categories = events.texts["category"]
    is_left_out = among(categories, _LEFT_OUT)[events.category]
    is_span = (events.phase == ord("X")) & (events.duration >= 0) & ~is_left_out
    impossible = int(((events.phase == ord("X")) & (events.duration < 0)).sum())
    if impossible:
        source.dropped["impossible_time"] += impossible
    rows = np.flatnonzero(is_span)
    starts = events.start[rows]
    category = events.category[rows]
    is_device = among(categories, _DEVICE)[category]
    named, launched, lanes = together(
        len(rows),
        lambda: _tell_by_name(events, rows, is_device, starts),
        lambda: find_launches(events, rows, is_device, among(categories, _RUNTIME)[category], starts),
        lambda: find_lanes(events, rows, is_device),
    )
    numbers = _categories(events, rows, is_device, named, launched)
    return RankEvents(
        source=source,
        events=events,
        rank=rank,
        size=size,
        base_ns=_integer(metadata.get("baseTimeNanoseconds"), 0),
        rows=rows,
        is_device=is_device,
        is_communication=named.is_communication,
        category=numbers,
        launches=launched,
        lanes=lanes,
    )


def _on_same_thread(threads: np.ndarray, starts: np.ndarray, chosen: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Which spans begin inside a chosen span of the same thread."""
    result = np.zeros(len(threads), bool)
    for thread in np.unique(threads[chosen]):
        mine = threads == thread
        result[mine] = inside(starts[mine], starts[mine & chosen], ends[mine & chosen])
    return result


def read(sources: Sequence[Source], progress: Progress) -> Trace:
    """Read the files of a job, one a rank.

    Raises:
        TraceError: they hold no spans, or two files are of the same rank.
    """
    on_progress = count_up(sources, progress)
    ranks = scan_all(
        sources,
        lambda number, source, events: _tell_apart(source, events, number),
        on_progress,
        integers=_INTEGERS,
        texts=_TEXTS,
    )
    ranks.sort(key=lambda item: item.rank)
    doubled = [rank for rank, count in Counter(item.rank for item in ranks).items() if count > 1]
    if doubled:
        names = ", ".join(item.source.path.name for item in ranks if item.rank == doubled[0])
        raise TraceError(f"{names}: these files are all of rank {doubled[0]}; open one run at a time")
    if not any(len(item.rows) for item in ranks):
        raise TraceError(f"{sources[0].path} holds no spans: was the profiler stopped before its first step?")
    origin_ns = min(int((item.events.start[item.rows] + item.base_ns).min()) for item in ranks if len(item.rows))
    size = max(*(item.size for item in ranks), len(ranks), ranks[-1].rank + 1)
    (collectives, arrivals), spans, launches, steps, kept_ratio, raw_args, known, tensors = together(
        sum(len(item.rows) for item in ranks),
        lambda: _with_arrivals(make_collectives(ranks, origin_ns)),
        lambda: make_spans(ranks, origin_ns),
        lambda: assemble_launches(make_launches(ranks, origin_ns)),
        lambda: make_steps(ranks, origin_ns),
        lambda: min(map(_kept_ratio, ranks)),
        lambda: FileArgs.of_events((item.source, item.events, item.rows) for item in ranks),
        lambda: {Category(CATEGORIES[number]) for item in ranks for number in np.unique(item.category)},
        lambda: TableBuilder(TENSOR_COLUMNS).finish(),
    )
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
            runtime="torch",
            framework="torch",
            notes=tuple(_notes(ranks, collectives, size, kept_ratio)),
            epoch_unix_ns=origin_ns if is_epoch else 0,
        ),
        spans=spans,
        collectives=collectives,
        tensors=tensors,
        arrivals=arrivals,
        steps=steps,
        counters=kineto_memory.make_counters(ranks, origin_ns),
        launches=launches,
        raw_args=raw_args,
    )


def _with_arrivals(collectives: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table, and when each rank arrived at what it holds: when the host launched it, or else when it began."""
    arrivals = collectives[["process_set", "seq", "rank"]].assign(
        arrival_ns=collectives["submitted_ns"].where(collectives["submitted_ns"] >= 0, collectives["start_ns"])
    )
    return collectives, arrivals.astype(ARRIVAL_COLUMNS).reset_index(drop=True)


def _notes(ranks: Sequence[RankEvents], collectives: pd.DataFrame, size: int, kept_ratio: float) -> list[str]:
    notes = []
    if size > len(ranks):
        notes.append(f"{size - len(ranks)} of {size} ranks have no file here")
    if size > 1 and not len(collectives):
        notes.append(
            "no communication was found though the job has several ranks: its kernels may have unknown names "
            "(they are recognised by `nccl` or `rccl` in the name)"
        )
    if kept_ratio < FILTERED_RATIO:
        notes.append(
            f"this file holds {kept_ratio:.0%} of the operators that the profiler numbered: it was filtered or sampled, and "
            "kernels are missing where the device seems idle"
        )
    if not any(item.size for item in ranks):
        notes.append("no distributedInfo: ranks are taken from file names, the number of ranks is a guess")
    return notes


def _kept_ratio(item: RankEvents) -> float:
    """Share of the operators numbered by the profiler that the file holds: it numbers them one by one."""
    events = item.events
    is_operator = np.zeros(len(events), bool)
    is_operator[item.rows] = among(events.texts["category"], {"cpu_op"})[events.category[item.rows]]
    found = events.keys["External id"]
    numbers = found.numbers[is_operator[found.rows]]
    numbers = numbers[numbers > 0]
    if len(numbers) < MIN_NUMBERED:
        return 1.0
    first, last = int(numbers.min()), int(numbers.max())
    different = count_different(numbers, first, last)
    return different / (last - first + 1) if different >= MIN_NUMBERED else 1.0


def count_different(numbers: np.ndarray, first: int, last: int) -> int:
    """How many different numbers there are from `first` to `last`, which they all are.

    >>> count_different(np.array([3, 5, 3]), 3, 5)
    2
    """
    if last - first >= 8 * len(numbers):
        return len(np.unique(numbers))
    # Hardly any is missing in most files: a mark for each takes a tenth of the time of sorting.
    is_there = np.zeros(last - first + 1, bool)
    is_there[numbers - first] = True
    return int(is_there.sum())
