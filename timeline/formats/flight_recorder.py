"""Dumps of torch's Flight Recorder, one a rank: what a job that hangs had asked for, and who did not.

They know collectives only.  Their times are of each host's wall clock.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ..errors import TraceError
from ..model.clocks import MEETINGS
from ..model.columns import TableBuilder
from ..model.ending import OpenSpan, OpenTensor, RankEnd, make_end
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
from ..vocabulary import COLLECTIVE_KINDS, Category, LaneKind
from .base import Progress
from .flight_recorder_dump import PICKLE, Dump, Entry, read_dump

NAME: Final = "flight-recorder"

_MARKS: Final = (b"pg_config", b"pg_status", b"collective_seq_id")
_RANK_IN_NAME: Final = re.compile(r"(?:rank[-_.]?|_)(\d{1,7})(?=\.|$)", re.IGNORECASE)
#: Kinds whose tensors are of one size on all ranks.
_SAME_SIZE: Final = {"allreduce", "reduce", "broadcast"}
#: Groups that all ranks are in.
_OF_ALL: Final = re.compile(r"^(0|default_pg)?( \(default_pg\))?$")
_MAX_NOTES: Final = 4


def sniff(head: bytes) -> bool:
    """A pickle or an object with entries and the words of the recorder."""
    start = head.lstrip()[:1]
    return start in {b"{", PICKLE} and b"entries" in head and any(mark in head for mark in _MARKS)


@dataclass(slots=True)
class _Operation:
    """One operation of a process group: what the ranks that have asked for it say of it."""

    group: str
    seq: int
    by_rank: dict[int, Entry] = field(default_factory=dict)
    awaited: tuple[int, ...] = ()
    """Ranks of the group whose dump is here and that have not asked for it."""
    all_are_here: bool = False
    """Whether the dumps of all ranks of the group are."""

    @property
    def is_open(self) -> bool:
        """Whether it hangs.  A dump may come a moment before a rank has noted an end: where one is done, all have been there."""
        done = [entry.is_done for entry in self.by_rank.values()]
        return not all(done) and not (any(done) and next(iter(self.by_rank.values())).kind in MEETINGS)

    def kinds(self) -> set[str]:
        """What the ranks have asked for: one and the same, if all is well."""
        return {
            f"{entry.kind} {entry.size_text if entry.kind in _SAME_SIZE else ''}" for entry in self.by_rank.values()
        }


def read(sources: Sequence[Source], progress: Progress) -> Trace:
    """Read the dumps of a job.

    Raises:
        TraceError: one is damaged, or they hold nothing.
    """
    dumps, notes = _one_each(sources, progress)
    times = [entry.created_ns for dump in dumps for entry in dump.entries if entry.created_ns > 0]
    if not times:
        raise TraceError(
            f"{sources[0].path}: this dump of the Flight Recorder is empty: record with TORCH_FR_BUFFER_SIZE=20000 (older: "
            "TORCH_NCCL_TRACE_BUFFER_SIZE)"
        )
    first_ns = min(times)
    members = _members(dumps)
    operations = _operations(dumps, members)
    size = max(*(rank + 1 for ranks in members.values() for rank in ranks), len(dumps), dumps[-1].rank + 1)
    here = tuple(dump.rank for dump in dumps)
    if size > len(dumps):
        notes.append(f"{size - len(dumps)} of {size} ranks have no dump here, so what they requested is unknown")
    notes += _disagreements(operations)
    notes += _messages(dumps)
    spans, collectives, arrivals = _tables(dumps, operations, first_ns)
    return Trace(
        meta=TraceMeta(
            format=NAME,
            files=tuple(str(dump.source.path) for dump in dumps),
            ranks=here,
            size=size,
            events=sum(len(dump.entries) for dump in dumps),
            dropped=dict(sum((dump.source.dropped for dump in dumps), Counter())),
            clock=Clock(method="single" if len(dumps) == 1 else "none", uncertainty_ns=0),
            known_categories=frozenset({Category.COLLECTIVE}),
            runtime="torch",
            framework="torch",
            notes=tuple(notes),
            epoch_unix_ns=first_ns,
            ends={dump.rank: _end(dump, operations, first_ns) for dump in dumps},
        ),
        spans=spans.finish(),
        collectives=collectives.finish(),
        tensors=TableBuilder(TENSOR_COLUMNS).finish(),
        arrivals=arrivals.finish(),
        steps=TableBuilder(STEP_COLUMNS).finish(),
        counters=TableBuilder(COUNTER_COLUMNS).finish(),
    )


def _one_each(sources: Sequence[Source], progress: Progress) -> tuple[list[Dump], list[str]]:
    """A dump of each rank: of two the pickle, which knows the lines of the script."""
    by_rank: dict[int, Dump] = {}
    left_out, guessed = [], []
    for position, source in enumerate(sources):
        in_name = _RANK_IN_NAME.search(source.path.name.removesuffix(".gz").removesuffix(".json"))
        if in_name is None:
            guessed.append(source.path.name)
        rank = int(in_name[1]) if in_name else position
        dump = read_dump(source, min(rank, MAX_RANKS))
        other = by_rank.get(dump.rank)
        if other is None or _lines_known(dump) > _lines_known(other):
            by_rank[dump.rank], dump = dump, other if other is not None else dump
        if by_rank[dump.rank] is not dump:
            left_out.append(dump.source.path.name)
        progress(position + 1, len(sources))
    notes = ["a dump of the Flight Recorder contains only collectives: no steps and no computation"]
    if left_out:
        notes.append(f"ignored, because another file has the same rank: {', '.join(left_out[:8])}")
    if guessed and len(sources) > 1:
        notes.append(f"ranks are the order of the files, as their names have none: {', '.join(guessed[:8])}")
    return [by_rank[rank] for rank in sorted(by_rank)], notes


def _lines_known(dump: Dump) -> int:
    return sum(bool(entry.where) for entry in dump.entries)


def _members(dumps: Sequence[Dump]) -> dict[str, tuple[int, ...]]:
    """Ranks of each process group: what its configuration says, else those that were seen in it."""
    seen: dict[str, set[int]] = {}
    for dump in dumps:
        for entry in dump.entries:
            seen.setdefault(entry.group, set()).add(dump.rank)
    told = {name: ranks for dump in dumps for name, ranks in dump.members.items()}
    everybody = {dump.rank for dump in dumps}
    members = {}
    for group, ranks in seen.items():
        name = group.partition(" ")[0]
        if _OF_ALL.match(group):
            ranks = ranks | everybody  # noqa: PLW2901
        members[group] = tuple(sorted(ranks | set(told.get(name, told.get("", ()) if _OF_ALL.match(group) else ()))))
    return members


def _operations(dumps: Sequence[Dump], members: Mapping[str, tuple[int, ...]]) -> dict[tuple[str, int], _Operation]:
    """What was asked for, by group and number; messages between two ranks are not among it."""
    found: dict[tuple[str, int], _Operation] = {}
    first: dict[tuple[str, int], int] = {}
    for dump in dumps:
        for entry in dump.entries:
            if entry.is_message:
                continue
            key = entry.group, entry.seq
            found.setdefault(key, _Operation(*key)).by_rank[dump.rank] = entry
            of_rank = entry.group, dump.rank
            first[of_rank] = min(first.get(of_rank, entry.seq), entry.seq)
    here = {dump.rank for dump in dumps}
    for operation in found.values():
        operation.all_are_here = len(here) > 1 and here.issuperset(members[operation.group])
        operation.awaited = tuple(
            rank
            for rank in members[operation.group]
            # What is older than the oldest that a rank remembers, it has asked for and forgotten.
            if rank in here and rank not in operation.by_rank and operation.seq >= first.get((operation.group, rank), 0)
        )
    return found


def _name_of(operation: _Operation) -> str:
    if len(operation.kinds()) > 1:
        return f"different collectives as #{operation.seq} of group {operation.group}"
    entry = operation.by_rank[min(operation.by_rank)]
    where = f" at {entry.where}" if entry.where else ""
    return f"{entry.kind} #{operation.seq} of group {operation.group}{where}"


def _end(
    dump: Dump,
    operations: Mapping[tuple[str, int], _Operation],
    first_ns: int,
) -> RankEnd:
    """What a rank was in when the dump was written."""
    tensors, spans = [], []
    for entry in dump.entries:
        if entry.is_done or entry.created_ns < 0:
            continue
        at_ns = max(entry.created_ns - first_ns, 0)
        if entry.is_message:
            spans.append(
                OpenSpan(lane=_lane(entry), category=str(Category.COLLECTIVE), name=entry.kind, start_ns=at_ns)
            )
            continue
        operation = operations[entry.group, entry.seq]
        if entry is not operation.by_rank[dump.rank] or not operation.is_open:
            continue
        tensors.append(
            OpenTensor(
                name=_name_of(operation),
                kind=entry.kind,
                submitted_ns=at_ns,
                is_negotiated=operation.all_are_here and not operation.awaited,
                asked_by=tuple(sorted(operation.by_rank)),
                awaited=operation.awaited,
            )
        )
    return make_end(is_closed=None, open_spans=spans, open_tensors=tensors, is_snapshot=True)


def _disagreements(operations: Mapping[tuple[str, int], _Operation]) -> list[str]:
    """Ranks that have asked for different things under one number: none of them will ever be done."""
    notes = []
    for operation in operations.values():
        if not operation.is_open or len(operation.kinds()) < 2:  # noqa: PLR2004  of one mind
            continue
        asked: dict[str, list[int]] = {}
        for rank, entry in sorted(operation.by_rank.items()):
            size = f" of {entry.size_text}" if entry.size_text else ""
            where = f" at {entry.where}" if entry.where else ""
            asked.setdefault(f"{entry.kind}{size}{where}", []).append(rank)
        parts = [f"{what} by rank {', '.join(map(str, ranks[:8]))}" for what, ranks in asked.items()]
        notes.append(
            f"different collectives were requested as #{operation.seq} of group {operation.group}, and none of them can end: "
            + "; ".join(parts)
        )
    return notes[:_MAX_NOTES]


def _messages(dumps: Sequence[Dump]) -> list[str]:
    """Messages between two ranks that have not ended; which send belongs to which receipt, not all versions tell."""
    notes = []
    for dump in dumps:
        hanging = [entry for entry in dump.entries if entry.is_message and not entry.is_done]
        if hanging:
            where = f" at {hanging[0].where}" if hanging[0].where else ""
            more = f" and {len(hanging) - 1} more" if len(hanging) > 1 else ""
            notes.append(f"rank {dump.rank} waits in a {hanging[0].kind} (#{hanging[0].seq}){where}{more}")
    return notes[:_MAX_NOTES]


def _lane(entry: Entry) -> str:
    return f"group {entry.group}"


def _tables(
    dumps: Sequence[Dump], operations: Mapping[tuple[str, int], _Operation], first_ns: int
) -> tuple[TableBuilder, TableBuilder, TableBuilder]:
    """Spans, collectives that have ended at a known time, and when each rank asked."""
    spans, collectives, arrivals = (
        TableBuilder(columns) for columns in (SPAN_COLUMNS, COLLECTIVE_COLUMNS, ARRIVAL_COLUMNS)
    )
    set_of = {group: number for number, group in enumerate(sorted({group for group, _ in operations}))}
    for dump in dumps:
        for entry in sorted(dump.entries, key=lambda item: item.created_ns):
            if entry.created_ns < 0:
                dump.source.dropped["impossible_time"] += 1
                continue
            asked = max(entry.created_ns - first_ns, 0)
            start = max(entry.started_ns - first_ns, asked)
            duration = max(entry.completed_ns - first_ns - start, 0)
            kind = LaneKind.OTHER if entry.is_message else LaneKind.COMMUNICATION
            spans.add(
                dump.rank, _lane(entry), str(kind), str(Category.COLLECTIVE), entry.kind.upper(), start, duration, -1
            )
            if entry.is_message:
                continue
            process_set = set_of[entry.group]
            arrivals.add(process_set, entry.seq, dump.rank, asked)
            if entry.completed_ns >= 0:
                collectives.add(
                    dump.rank, process_set, entry.seq, entry.kind if entry.kind in COLLECTIVE_KINDS else "other", "", entry.dtype,
                    "", entry.nbytes, 1, asked, -1, start, duration, 0, "", -1, entry.where,
                )  # fmt: skip
    return spans, collectives, arrivals
