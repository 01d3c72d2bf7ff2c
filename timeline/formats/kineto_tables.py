"""What was told apart in a Kineto trace, as the tables of a `Trace`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from ..model.columns import assemble
from ..model.trace import ARRIVAL_COLUMNS, COLLECTIVE_COLUMNS, SPAN_COLUMNS, STEP_COLUMNS, make_table
from ..read.source import Source
from ..scanning import Events, first_rows, gather, narrow
from ..vocabulary import DTYPE_NBYTES, Category, LaneKind
from . import kineto_marks as marks
from .kineto_callers import Asked, find_callers, waited_between_passes
from .kineto_launches import Launches, launches_of
from .kineto_memory import Memory

#: What vLLM and SGLang write around a batch; with fewer than MIN_BATCHES whole ones they are no steps.
_BATCHES: Final = (re.compile(r"^execute_"), re.compile(r"^step\["))
MIN_BATCHES: Final = 3

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
    ("gather", re.compile(r"gather", re.IGNORECASE)),
    ("scatter", re.compile(r"scatter", re.IGNORECASE)),
    ("barrier", re.compile(r"barrier", re.IGNORECASE)),
    ("reduce", re.compile(r"reduce", re.IGNORECASE)),
    ("sendrecv", re.compile(r"send|recv", re.IGNORECASE)),
)


def kind_of(name: str) -> str:
    """The kind of a collective out of the name of its kernel or call; "other" if the name does not tell."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")


@dataclass(slots=True)
class RankEvents:
    """The complete events of one file, told apart."""

    source: Source
    events: Events
    """No others; arrays below have a place for each of them."""
    events_read: int
    """With all others."""
    memory: Memory | None
    rank: int
    size: int
    base_ns: int
    kept_ratio: float
    """Share of the operators numbered by the profiler that the file holds."""
    kinds: marks.Kinds
    """What the categories and the names tell."""
    is_device: np.ndarray
    communication: np.ndarray
    """The rows of those that are."""
    category: np.ndarray
    """As numbers of `CATEGORIES`."""
    launches: Launches
    lanes: tuple[np.ndarray, list[str]]
    """As numbers and their names."""

    def begin_at(self, origin_ns: int) -> None:
        """Put all times on the run's clock, which begins at `origin_ns` of the files' own."""
        self.events.shift(self.base_ns - origin_ns)
        self.launches.shift(self.base_ns - origin_ns)


CATEGORIES: Final = tuple(str(category) for category in Category)
NUMBER: Final = {category: number for number, category in enumerate(CATEGORIES)}


def find_lanes(
    events: Events, is_device: np.ndarray, named: Mapping[tuple[int, int], str]
) -> tuple[np.ndarray, list[str]]:
    """The lane of each complete event, as its number and its name: a stream of a device, or a thread of the host.

    Args:
        named: what the trace calls threads (`Events.thread_names`).
    """
    stream = events.keys["stream"]
    streams, processes = len(stream.texts), max(len(events.texts["process"]), 1)
    # Devices first, the stream of the highest number in front, then threads: as many keys as there can be lanes.
    count = streams + 1 + len(events.texts["thread"]) * processes
    dtype = (
        np.uint8 if count <= 1 << 8 else np.uint16 if count <= 1 << 16 else np.int32 if count < 1 << 31 else np.int64
    )
    of_thread = np.arange(max(len(events.texts["thread"]), 1), dtype=np.int64) * processes + (streams + 1)
    key = gather(of_thread.astype(dtype), events.thread)
    if processes > 1:
        key += gather(np.arange(processes).astype(dtype), events.process)
    np.copyto(key, streams, where=is_device, casting="unsafe")
    is_of_device, rows, numbers_of = gather(is_device, stream.rows), stream.rows, stream.numbers
    if not is_of_device.all():
        rows, numbers_of = rows.compress(is_of_device), numbers_of.compress(is_of_device)
    if len(rows):
        key[rows] = gather(np.arange(streams - 1, -1, -1).astype(dtype), numbers_of)
    unique, numbers = _numbered(key, count)
    lanes: list[str] = []
    for value in unique.tolist():
        if value <= streams:
            number = streams - 1 - value
            lanes.append(f"stream {stream.texts[number]}" if number >= 0 else "device")
        else:
            thread, process = divmod(value - streams - 1, processes)
            lanes.append(named.get((process, thread), f"thread {events.texts['thread'][thread]}"))
    return numbers, lanes


def _numbered(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The different values in order, and the number of each value among them, in as few bytes as hold them.

    Args:
        values: integers, not negative and less than `count`.
    """
    if count > 8 * len(values):
        unique, inverse = np.unique(values, return_inverse=True)
        return unique, narrow(inverse.astype(np.int32), len(unique))
    unique = np.flatnonzero(first_rows(values, 0, count) >= 0)
    number = np.zeros(count, np.int32)
    number[unique] = np.arange(len(unique), dtype=np.int32)
    return unique, gather(narrow(number, len(unique)), values)


def _lane_kinds(ranks: Sequence[RankEvents]) -> list[np.ndarray]:
    """The kind of the lane of each complete event, as numbers of `LaneKind` in its order; one array per file."""
    number_of = {kind: number for number, kind in enumerate(LaneKind)}
    found = []
    for item in ranks:
        host_kind = number_of[LaneKind.HOST] if item.is_device.any() else number_of[LaneKind.COMPUTE]
        of_kind = np.full(len(item.kinds.categories), host_kind, np.int8)
        of_kind[item.kinds.of_category(marks.REPEATED)] = number_of[LaneKind.OTHER]
        of_kind[item.kinds.of_category(marks.DEVICE)] = number_of[LaneKind.COMPUTE]
        kind = item.kinds.are(of_kind)
        kind[item.communication] = number_of[LaneKind.COMMUNICATION]
        np.copyto(kind, number_of[LaneKind.DATA], where=item.category == NUMBER[Category.DATA])
        found.append(kind)
    return found


def _args_rows(ranks: Sequence[RankEvents]) -> list[np.ndarray]:
    """The row of the args of each complete event, -1 without args; one array per file."""
    found, first = [], 0
    for item in ranks:
        count = len(item.events)
        args_row = np.arange(first, first + count)
        np.copyto(args_row, -1, where=item.events.args_start == -1)
        found.append(args_row)
        first += count
    return found


def make_spans(ranks: Sequence[RankEvents]) -> pd.DataFrame:
    """All complete events as spans, by lane."""
    kinds = [str(kind) for kind in LaneKind]
    return assemble(
        SPAN_COLUMNS,
        [
            {
                "rank": np.full(len(item.events), item.rank, np.int32),
                "lane": item.lanes,
                "lane_kind": (kind, kinds),
                "category": (item.category, list(CATEGORIES)),
                "name": (item.events.name, item.events.texts["name"]),
                "start_ns": item.events.start,
                "dur_ns": item.events.duration,
                "args_row": args_row,
            }
            for item, kind, args_row in zip(ranks, _lane_kinds(ranks), _args_rows(ranks), strict=True)
        ],
    )


def make_launches(ranks: Sequence[RankEvents]) -> list[dict[str, Any]]:
    """How the spans of devices were launched, by file."""
    return [launches_of(item.rank, item.events, item.launches, item.lanes) for item in ranks if item.is_device.any()]


def make_steps(ranks: Sequence[RankEvents]) -> pd.DataFrame:
    """The profiler's steps, as the host marked them; without them the batches of an inference server."""
    parts: list[dict[str, Any]] = []
    for item in ranks:
        rows, numbers = _profiler_steps(item)
        starts = item.events.start[rows]
        ends = starts + item.events.duration[rows]
        if not len(rows):
            starts, ends = _batches(item)
            numbers = np.arange(len(starts))
        parts.append(
            {
                "rank": np.full(len(starts), item.rank, np.int32),
                "step": numbers,
                "start_ns": starts,
                "end_ns": ends,
            }
        )
    return assemble(STEP_COLUMNS, parts)


def _annotations(kinds: marks.Kinds) -> np.ndarray:
    """Which kinds are the host's spans, without those that the profiler repeats on the device and frames of Python: bool."""
    return ~kinds.of_category(marks.DEVICE | marks.REPEATED | marks.PYTHON)


def _profiler_steps(item: RankEvents) -> tuple[np.ndarray, np.ndarray]:
    """Spans of ProfilerStep#N and their numbers, by time."""
    events, kinds = item.events, item.kinds
    annotations, steps = _annotations(kinds), kinds.of_name(marks.STEP)
    chosen = kinds.rows(steps & annotations)
    chosen = chosen[np.argsort(events.start[chosen], kind="stable")]
    # The profiler begins a step when one has ended, also when the recording ends there: nothing happens in that one.
    if len(chosen) > 1:
        first, last = events.start[chosen[-1]], events.start[chosen[-1]] + events.duration[chosen[-1]]
        is_other = kinds.are(annotations & ~steps)
        if is_other.any():
            late = np.flatnonzero(events.start >= first)
            if not (is_other[late] & (events.start[late] < last)).any():
                chosen = chosen[:-1]
    names = events.texts["name"]
    return chosen, np.array([marks.step_number(names[number]) for number in events.name[chosen].tolist()], np.int64)


def _batches(item: RankEvents) -> tuple[np.ndarray, np.ndarray]:
    """Batches as steps: each from its annotation to the next one's, since the device runs behind the host.

    One or two annotations tell nothing of a rhythm: such a recording has no steps.
    """
    events = item.events
    for pattern in _BATCHES:
        matches = marks.matching(events.texts["name"], pattern)
        if matches.any():
            starts = np.sort(events.start[gather(matches, events.name) & item.kinds.are(_annotations(item.kinds))])
            if len(starts) > MIN_BATCHES:
                return starts[:-1], starts[1:]
    return np.empty(0, np.int64), np.empty(0, np.int64)


def make_collectives(ranks: Sequence[RankEvents]) -> pd.DataFrame:
    """One row a collective and rank, numbered in the order of their starts within each process group."""
    group_number: dict[str, int] = {}
    parts: list[dict[str, Any]] = []
    for item in ranks:
        events = item.events
        chosen = item.communication
        rows = chosen[np.argsort(events.start[chosen], kind="stable")]

        def text(key: str, default: str = "", rows: np.ndarray = rows, events: Events = events) -> list[str]:
            return events.keys[key].texts_of(rows, default)

        names = [events.texts["name"][number] for number in events.name[rows].tolist()]
        told_as = [
            told if told not in {"", "wait"} else name
            for told, name in zip(text("Collective name"), _calls(item, rows, names), strict=True)
        ]
        kind_of_name = {name: kind_of(name) for name in set(told_as)}
        kinds = [kind_of_name[name] for name in told_as]
        groups = [group_number.setdefault(name, len(group_number)) for name in text("Process Group Name")]
        dtypes = [_DTYPE_NAMES.get(name.lower(), name.lower()) for name in text("dtype")]
        elements = events.keys["In msg nelems"].numbers_of(rows, -1)
        sizes = np.array([DTYPE_NBYTES.get(name, 0) for name in dtypes], np.int64)
        process_set = np.array(groups, np.int32)
        seq = np.zeros(len(rows), np.int64)
        for group in np.unique(process_set):
            mine = process_set == group
            seq[mine] = np.arange(int(mine.sum()))
        launched, _ = item.launches.of(events, rows)
        algorithms = [
            "nccl" if on_device else name.partition(":")[0]
            for on_device, name in zip(item.is_device[rows], names, strict=True)
        ]
        callers, waited = _callers(item, rows, kinds)
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
                "submitted_ns": launched,
                "negotiated_ns": np.full(len(rows), -1, np.int64),
                "start_ns": events.start[rows],
                "dur_ns": events.duration[rows],
                "copy_ns": np.zeros(len(rows), np.int64),
                "caller": _encoded(callers),
                "blocking": np.where(waited, 1, -1).astype(np.int8),
                "where": _encoded([""] * len(rows)),
            }
        )
    return assemble(COLLECTIVE_COLUMNS, parts)


def with_arrivals(collectives: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table, and when each rank arrived at what it holds: when the host launched it, or else when it began."""
    submitted, start = (collectives[name].to_numpy() for name in ("submitted_ns", "start_ns"))
    arrivals: dict[str, object] = {name: collectives[name].to_numpy() for name in ("process_set", "seq", "rank")}
    arrivals["arrival_ns"] = np.where(submitted >= 0, submitted, start)
    return collectives, make_table(ARRIVAL_COLUMNS, arrivals)


def _callers(item: RankEvents, chosen: np.ndarray, kinds: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Who asked for each collective, and which ones of user code were waited for at once.

    A device's by their launch; the host's own run on threads of their own.
    """
    events, is_host = item.events, ~item.is_device
    launched, threads = item.launches.of(events, chosen)
    asked = Asked(
        np.where(launched >= 0, launched, events.start[chosen]),
        np.where(launched >= 0, threads, -1),
    )
    callers = find_callers(events, is_host, asked, kinds)
    waited = np.zeros(len(chosen), bool)
    on_host = is_host[chosen]
    waited[on_host] = waited_between_passes(events, is_host, chosen[on_host])
    return [
        "user" if is_waited and not caller else caller for caller, is_waited in zip(callers, waited, strict=True)
    ], waited


def _calls(item: RankEvents, chosen: np.ndarray, names: Sequence[str]) -> list[str]:
    """What tells the kind of each collective best: the call that launched it, else the kernel's own name."""
    events = item.events
    calls = item.kinds.rows(item.kinds.of_name(marks.HOST_COLLECTIVE) & ~item.kinds.of_category(marks.DEVICE))
    if not len(calls):
        return list(names)
    calls = calls[np.argsort(events.start[calls], kind="stable")]
    launched, _ = item.launches.of(events, chosen)
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
