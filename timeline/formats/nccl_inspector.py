"""Logs of NCCL's Inspector plug-in: a JSON object a line, of the last collective of a communicator that has ended.

The plug-in writes at intervals, so that collectives that follow each other faster are samples.  Bytes, duration and bandwidth are
there; when it began is known to the microsecond with NCCL_INSPECTOR_DUMP_VERBOSE=1, and otherwise only when the line was written,
some time after the end.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from ..errors import TraceError
from ..model.columns import TableBuilder
from ..model.trace import (
    ARRIVAL_COLUMNS,
    COLLECTIVE_COLUMNS,
    COUNTER_COLUMNS,
    MAX_RANKS,
    SPAN_COLUMNS,
    STEP_COLUMNS,
    TENSOR_COLUMNS,
    Clock,
    Trace,
    TraceMeta,
)
from ..read.source import Source
from ..scanning import check_proportion
from ..vocabulary import Category, LaneKind
from .base import Progress

NAME: Final = "nccl-inspector"

BANDWIDTH_COUNTER: Final = "bus bandwidth GB/s"

_KINDS: Final = {
    "AllReduce": "allreduce", "AllGather": "allgather", "ReduceScatter": "reducescatter", "Broadcast": "broadcast",
    "Reduce": "reduce", "AllToAll": "alltoall", "Gather": "gather", "Scatter": "scatter",
    "Send": "sendrecv", "Recv": "sendrecv", "SendRecv": "sendrecv",
}  # fmt: skip
#: Times in µs, and bytes, up to which they make sense.
_MAX_US: Final = 2**52
_MAX_NBYTES: Final = 2**60


class _Header(msgspec.Struct, gc=False):
    id: str
    rank: int
    n_ranks: int


class _Metadata(msgspec.Struct, gc=False):
    dump_timestamp_us: int
    hostname: str = ""
    pid: int = 0


class _Times(msgspec.Struct, gc=False):
    coll_start_ts: int = 0


class _Collective(msgspec.Struct, gc=False):
    coll: str
    coll_sn: int
    coll_msg_size_bytes: int
    coll_exec_time_us: int
    coll_busbw_gbs: float | str = 0.0
    """A text, `nan`, where it took no time."""
    event_trace_ts: _Times | None = None


class _Line(msgspec.Struct, gc=False):
    header: _Header
    metadata: _Metadata
    coll_perf: _Collective


_decode: Final = msgspec.json.Decoder(_Line).decode


def sniff(head: bytes) -> bool:
    """The first line has the plug-in's words."""
    return head.lstrip()[:1] == b"{" and b'"coll_perf"' in head and b'"inspector_output_format_version"' in head


class _Row(msgspec.Struct, gc=False):
    """One collective of one process; times in ns of its host's wall clock."""

    process: tuple[str, int]
    communicator: str
    rank: int
    seq: int
    kind: str
    nbytes: int
    start_ns: int
    duration_ns: int
    busbw: float


def read(sources: Sequence[Source], progress: Progress) -> Trace:
    """Read the logs of a job.

    Raises:
        TraceError: there is no collective in them.
    """
    rows: list[_Row] = []
    sizes: dict[str, int] = {}
    exact = 0
    for number, source in enumerate(sources):
        exact += _read_lines(source, rows, sizes)
        progress(number + 1, len(sources))
    if not rows:
        raise TraceError(f"{sources[0].path}: no collective in this log of NCCL's Inspector could be read")
    notes = [
        "these logs hold the last collective of each interval (NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS), not all",
        *_set_ranks(rows, sizes),
    ]
    if exact < len(rows):
        notes.append(
            "when collectives began is not in these logs (NCCL_INSPECTOR_DUMP_VERBOSE=1 writes it): they are shown to end when "
            "their line was written; how long they took, and their bandwidth, is exact"
        )
    first_ns = min(row.start_ns for row in rows)
    spans, collectives, counters = _tables(rows, first_ns)
    ranks = tuple(sorted({row.rank for row in rows}))
    hosts = {row.rank: row.process[0] for row in rows}
    return Trace(
        meta=TraceMeta(
            format=NAME,
            files=tuple(str(source.path) for source in sources),
            ranks=ranks,
            size=max(*sizes.values(), ranks[-1] + 1),
            events=len(rows),
            dropped=dict(sum((source.dropped for source in sources), Counter())),
            clock=Clock(method="single" if len(ranks) == 1 else "none", uncertainty_ns=0),
            known_categories=frozenset({Category.COLLECTIVE}),
            hosts=hosts,
            notes=tuple(notes),
            epoch_unix_ns=first_ns,
        ),
        spans=spans.finish(),
        collectives=collectives.finish(),
        tensors=TableBuilder(TENSOR_COLUMNS).finish(),
        arrivals=TableBuilder(ARRIVAL_COLUMNS).finish(),
        steps=TableBuilder(STEP_COLUMNS).finish(),
        counters=counters.finish(),
    )


def _read_lines(source: Source, rows: list[_Row], sizes: dict[str, int]) -> int:
    """Add the collectives of a file; how many of them have their time."""
    exact, nbytes, before = 0, 0, len(rows)
    with source.open() as stream:
        rest = b""
        while block := stream.read(1 << 20):
            nbytes += len(block)
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            if len(rest) > _MAX_LINE:
                raise TraceError(f"{source.path} is no log of NCCL's Inspector: a line of it has no end")
            exact += sum(_take(line, source, rows, sizes) for line in lines)
            broken = source.dropped["broken"]
            check_proportion(source, nbytes=nbytes, events=len(rows) - before, texts=len(sizes), broken=broken)
        if rest.strip():
            # The process may have been killed in the middle of its last line.
            was = source.dropped["broken"]
            exact += _take(rest, source, rows, sizes)
            source.dropped["truncated"] += source.dropped["broken"] - was
            source.dropped["broken"] = was
    source.dropped += Counter()  # without zeros
    return exact


#: A line is some 500 bytes, with the events of all channels some thousands.
_MAX_LINE: Final = 4 * 1024 * 1024


def _take(line: bytes, source: Source, rows: list[_Row], sizes: dict[str, int]) -> bool:
    """Add what a line says; whether it says when it began."""
    if not line.strip():
        return False
    try:
        told = _decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        source.dropped["broken"] += 1
        return False
    header, done = told.header, told.coll_perf
    start_us = done.event_trace_ts.coll_start_ts if done.event_trace_ts is not None else 0
    is_exact = start_us > 0
    if not is_exact:
        start_us = told.metadata.dump_timestamp_us - done.coll_exec_time_us
    is_sound = 0 <= header.rank < header.n_ranks <= MAX_RANKS and abs(told.metadata.pid) < 2**62
    if not is_sound or not (
        0 < start_us < _MAX_US and 0 <= done.coll_exec_time_us < _MAX_US and abs(done.coll_sn) < 2**62
    ):
        source.dropped["impossible_time" if is_sound else "broken"] += 1
        return False
    rows.append(
        _Row(
            (told.metadata.hostname, told.metadata.pid), header.id, header.rank, done.coll_sn, _KINDS.get(done.coll, "other"),
            done.coll_msg_size_bytes if 0 <= done.coll_msg_size_bytes < _MAX_NBYTES else -1, start_us * 1000,
            done.coll_exec_time_us * 1000, done.coll_busbw_gbs if isinstance(done.coll_busbw_gbs, float) else 0.0,
        )
    )  # fmt: skip
    sizes[header.id] = max(sizes.get(header.id, 0), header.n_ranks)
    return is_exact


def _set_ranks(rows: Sequence[_Row], sizes: dict[str, int]) -> list[str]:
    """Give each row its process' rank in the job: that in the largest communicator.  Returns what has to be said of it."""
    largest = max(sizes, key=sizes.__getitem__)
    ranks: dict[tuple[str, int], set[int]] = {}
    for row in rows:
        of_process = ranks.setdefault(row.process, set())
        if row.communicator == largest:
            of_process.add(row.rank)
    if not all(ranks.values()):
        number_of = {process: number for number, process in enumerate(sorted(ranks))}
        for row in rows:
            row.rank = number_of[row.process]
        return ["ranks are the order of hosts and processes: no communicator holds all of them"]
    for row in rows:
        of_process = ranks[row.process]
        if row.communicator != largest:  # of a process with several devices the first has to stand for all
            row.rank = min(of_process)
    if any(len(of_process) > 1 for of_process in ranks.values()):
        return [
            "processes with several devices: collectives outside the largest communicator are shown at the first one's rank"
        ]
    return []


def _tables(rows: list[_Row], first_ns: int) -> tuple[TableBuilder, TableBuilder, TableBuilder]:
    spans, collectives, counters = (
        TableBuilder(columns) for columns in (SPAN_COLUMNS, COLLECTIVE_COLUMNS, COUNTER_COLUMNS)
    )
    set_of: dict[str, int] = {}
    for row in sorted(rows, key=lambda item: (item.rank, item.start_ns)):
        rank, start = row.rank, row.start_ns - first_ns
        process_set = set_of.setdefault(row.communicator, len(set_of))
        lane = f"communicator {row.communicator}"
        spans.add(
            rank,
            lane,
            str(LaneKind.COMMUNICATION),
            str(Category.COLLECTIVE),
            row.kind.upper(),
            start,
            row.duration_ns,
            -1,
        )
        collectives.add(
            rank,
            process_set,
            row.seq,
            row.kind,
            "",
            "",
            "nccl",
            row.nbytes,
            1,
            -1,
            -1,
            start,
            row.duration_ns,
            0,
            "",
            -1,
            "",
        )
        if 0 < row.busbw < float("inf"):
            counters.add(rank, BANDWIDTH_COUNTER, start + row.duration_ns, row.busbw)
    return spans, collectives, counters
