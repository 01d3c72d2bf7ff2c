"""Traces of the PyTorch profiler (Kineto): one file a rank, on CPUs, NVIDIA and AMD GPUs, MTIA.

What happens on a device is put on the lanes of compute and communication, and what happens on the host on lanes of its own: with
a GPU the host only hands out work.  In a trace without a device the host's threads are the lanes of compute.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pandas as pd

from ..errors import TraceError
from ..model.trace import (
    MESSAGE_COLUMNS,
    SUM_COLUMNS,
    TENSOR_COLUMNS,
    Clock,
    Trace,
    TraceMeta,
    make_table,
)
from ..read.args import FileArgs, places_of
from ..read.merging import Beside
from ..read.source import Source
from ..scanning import Events, first_rows, gather, halves, scan_all, together
from ..vocabulary import Category
from . import kineto_marks as marks
from . import kineto_memory
from .base import Progress, count_up
from .kineto_launches import (
    Launches,
    assemble_launches,
    find_launches,
    inside,
    launched_by_backward,
    threads_of,
)
from .kineto_marks import Kinds
from .kineto_tables import (
    CATEGORIES,
    NUMBER,
    RankEvents,
    find_lanes,
    make_collectives,
    make_launches,
    make_spans,
    make_steps,
    with_arrivals,
)

NAME: Final = "kineto"

#: A file with less of the operators that were numbered was filtered; with fewer than so many nobody can say.
FILTERED_RATIO: Final = 0.2
MIN_NUMBERED: Final = 100

_INTEGERS: Final = ("correlation", "External id", "In msg nelems", *kineto_memory.KEYS)
_TEXTS: Final = ("stream", "Collective name", "dtype", "Process Group Name", "name")

_RANK_IN_NAME: Final = re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE)


def sniff(head: bytes) -> bool:
    """An object with `traceEvents` and what only Kineto writes beside or in them."""
    if b'"traceEvents"' not in head and b'"deviceProperties"' not in head:
        return False
    signs = (b'"deviceProperties"', b'"schemaVersion"', b'"distributedInfo"', b'"cpu_op"', b'"baseTimeNanoseconds"')
    return any(sign in head for sign in signs)


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


def _tell_categories(events: Events, kinds: Kinds, *, has_device: bool) -> np.ndarray:
    """What each complete event belongs to, as numbers of `CATEGORIES`, communication and what was launched aside.

    Args:
        events: complete events only.
        kinds: of them.
    """
    of_host = ~kinds.of_category(marks.DEVICE)
    of_kind = np.full(len(of_host), NUMBER[Category.OTHER], np.int8)
    backward = kinds.of_name(marks.BACKWARD) & of_host & ~kinds.of_category(marks.PYTHON)
    optimizer = kinds.of_name(marks.OPTIMIZER) & of_host
    operators = kinds.of_category(marks.ANY_OPERATOR)
    if not has_device:
        of_kind[operators] = NUMBER[Category.FORWARD]
    of_kind[backward] = NUMBER[Category.BACKWARD]
    of_kind[optimizer] = NUMBER[Category.OPTIMIZER]
    of_kind[kinds.of_name(marks.DATA) & of_host] = NUMBER[Category.DATA]
    numbers = kinds.are(of_kind)
    if has_device:
        return numbers
    # What the kind tells of itself is truer than what surrounds it.
    is_operator = kinds.are(operators & ~backward & ~optimizer & ~(kinds.of_name(marks.DATA) & of_host))
    # DDP puts reduced gradients back when backward waits for them.
    in_backward = _on_same_thread(events, kinds.are(backward)) | kinds.are(kinds.of_name(marks.REDUCER))
    numbers[is_operator & in_backward] = NUMBER[Category.BACKWARD]
    numbers[is_operator & _on_same_thread(events, kinds.are(optimizer))] = NUMBER[Category.OPTIMIZER]
    return numbers


class _HostRows(NamedTuple):
    """What of the host tells to what the device's work belongs, as rows."""

    nodes: np.ndarray
    """Of autograd."""
    loop: np.ndarray
    """What only the training loop has."""
    updates: np.ndarray


def _find_host_rows(kinds: Kinds) -> _HostRows:
    of_host = ~kinds.of_category(marks.DEVICE)
    return _HostRows(
        nodes=kinds.rows(kinds.of_name(marks.BACKWARD) & of_host & ~kinds.of_category(marks.PYTHON)),
        loop=kinds.rows(kinds.of_name(marks.LOOP) & of_host),
        updates=kinds.rows(kinds.of_name(marks.OPTIMIZER) & of_host),
    )


def _tell_launched(numbers: np.ndarray, events: Events, hosts: _HostRows, launched: Launches) -> None:
    """Work on the device belongs to what the host was about when it handed it out."""
    updates = hosts.updates
    starts = events.start[updates]
    ends = starts + events.duration[updates]

    def tell(mine: Launches) -> None:
        by_backward = launched_by_backward(mine, events, hosts.nodes, hosts.loop)
        is_told = mine.caller >= 0
        in_optimizer = is_told & ~by_backward
        in_optimizer[in_optimizer] = inside(mine.times[in_optimizer], starts, ends)
        of_launch = np.full(len(is_told), NUMBER[Category.FORWARD], np.int8)
        of_launch[by_backward] = NUMBER[Category.BACKWARD]
        of_launch[in_optimizer] = NUMBER[Category.OPTIMIZER]
        if is_told.all():
            numbers[mine.spans] = of_launch
        else:
            numbers[mine.spans[is_told]] = of_launch[is_told]

    together(len(events), *(partial(tell, half) for half in launched.halves()))


def _communication(kinds: Kinds, *, has_device: bool) -> np.ndarray:
    """The rows of communication: of devices, or of the host where there are none."""
    if not has_device:
        return kinds.rows(kinds.of_name(marks.HOST_COLLECTIVE))
    of_device = kinds.of_category(marks.DEVICE) & ~kinds.of_category(marks.MEMORY)
    return kinds.rows(kinds.of_name(marks.OF_NCCL) & of_device)


def _tell_apart(source: Source, events: Events, fallback_rank: int) -> RankEvents:
    """The complete events of a file, which are all that is left of `events`."""
    metadata = _metadata(events)
    rank, size = _rank_and_size(source, metadata, fallback_rank)
    events_read = len(events)
    is_span = np.empty(events_read, bool)
    of_names, named, *impossible = together(
        events_read,
        lambda: marks.marks_of_names(events.texts["name"]),
        events.thread_names,
        *(partial(_find_spans, events, part, is_span) for part in halves(events_read)),
    )
    if sum(impossible):
        source.dropped["impossible_time"] += sum(impossible)
    memory = kineto_memory.find_memory(events)
    events.keep(is_span)
    del is_span
    kinds, is_device = marks.find_kinds(events, of_names)
    has_device = bool(is_device.any())
    launched, lanes, numbers, hosts, kept_ratio, communication = together(
        len(events),
        lambda: find_launches(events, kinds),
        lambda: find_lanes(events, is_device, named),
        lambda: _tell_categories(events, kinds, has_device=has_device),
        lambda: _find_host_rows(kinds),
        lambda: _kept_ratio(events, kinds),
        lambda: _communication(kinds, has_device=has_device),
    )
    for key in ("correlation", "External id", "stream", "name"):
        del events.keys[key]  # all is known of these
    if has_device:
        _tell_launched(numbers, events, hosts, launched)
        numbers[kinds.rows(kinds.of_name(marks.TO_DEVICE) & kinds.of_category(marks.MEMORY))] = NUMBER[Category.H2D]
    numbers[communication] = NUMBER[Category.COLLECTIVE]
    return RankEvents(
        source=source,
        events=events,
        events_read=events_read,
        memory=memory,
        rank=rank,
        size=size,
        base_ns=_integer(metadata.get("baseTimeNanoseconds"), 0),
        kept_ratio=kept_ratio,
        kinds=kinds,
        is_device=is_device,
        communication=communication,
        category=numbers,
        launches=launched,
        lanes=lanes,
    )


def _find_spans(events: Events, part: slice, is_span: np.ndarray) -> int:
    """Tell of some events whether they are complete and of use; returns how many would be, were their times possible."""
    left_out = (marks.marks_of_categories(events.texts["category"]) & marks.LEFT_OUT) != 0
    mine = np.equal(events.phase[part], ord("X"), out=is_span[part])
    complete = int(np.count_nonzero(mine))
    mine &= events.duration[part] >= 0
    impossible = complete - int(np.count_nonzero(mine))
    if left_out.any():
        mine &= ~gather(left_out, events.category[part])
    return impossible


def _on_same_thread(events: Events, chosen: np.ndarray) -> np.ndarray:
    """Which of all complete events begin inside a chosen one of the same thread: bool."""
    result = np.zeros(len(events), bool)
    if not chosen.any():
        return result
    threads = threads_of(events, np.arange(len(events)))
    starts = events.start
    for thread in np.unique(threads[chosen]):
        mine = threads == thread
        around = mine & chosen
        result[mine] = inside(starts[mine], starts[around], starts[around] + events.duration[around])
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
    if not any(len(item.events) for item in ranks):
        raise TraceError(f"{sources[0].path} holds no spans: was the profiler stopped before its first step?")
    origin_ns = min(int(item.events.start.min()) + item.base_ns for item in ranks if len(item.events))
    for item in ranks:
        item.begin_at(origin_ns)
    size = max(*(item.size for item in ranks), len(ranks), ranks[-1].rank + 1)
    kept_ratio = min(item.kept_ratio for item in ranks)
    launches, (collectives, arrivals), spans, others, steps, known = together(
        sum(len(item.events) for item in ranks),
        lambda: assemble_launches(make_launches(ranks)),
        lambda: with_arrivals(make_collectives(ranks)),
        lambda: make_spans(ranks),
        lambda: _other_tables(ranks, origin_ns),
        lambda: make_steps(ranks),
        lambda: {Category(name) for item in ranks for name in _categories_of(item)},
    )
    is_epoch = origin_ns > 10**18
    return Trace(
        meta=TraceMeta(
            format=NAME,
            files=tuple(str(item.source.path) for item in ranks),
            ranks=tuple(item.rank for item in ranks),
            size=size,
            events=sum(item.events_read for item in ranks),
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
        arrivals=arrivals,
        steps=steps,
        launches=launches,
        **others,
        raw_args=FileArgs((item.source, places_of(item.events)) for item in ranks),
    )


def _categories_of(item: RankEvents) -> list[str]:
    """The categories that there are."""
    first = first_rows(item.category, 0, len(CATEGORIES)).tolist()
    return [name for name, row in zip(CATEGORIES, first, strict=True) if row >= 0]


def _other_tables(ranks: Sequence[RankEvents], origin_ns: int) -> dict[str, pd.DataFrame]:
    """Of allocations, and the tables of which Kineto has nothing."""
    return {
        "tensors": make_table(TENSOR_COLUMNS),
        "messages": make_table(MESSAGE_COLUMNS),
        "sums": make_table(SUM_COLUMNS),
        "counters": kineto_memory.make_counters((item.rank, item.memory, item.base_ns - origin_ns) for item in ranks),
    }


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


def _kept_ratio(events: Events, kinds: Kinds) -> float:
    """Share of the operators numbered by the profiler that the file holds: it numbers them one by one."""
    found = events.keys["External id"]
    # Mostly every event has one.
    of_number = kinds.of_event if len(found.rows) == len(events) else gather(kinds.of_event, found.rows)
    numbers = found.numbers.compress(gather(kinds.of_category(marks.NUMBERED), of_number))
    if len(numbers) and int(numbers.min()) <= 0:
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
    return int(np.count_nonzero(first_rows(numbers, first, last - first + 1) >= 0))
