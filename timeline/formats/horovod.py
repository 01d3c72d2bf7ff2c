"""Timelines that Horovod itself wrote: rank 0 only, one "process" a tensor, `E` events without names.

What the format does not say has to be inferred: tensors that were fused into one collective are neighbours in the file (all
begin before anything else happens).  Ticks of ranks inside a negotiation are arrivals, at the time when the coordinator
looked, which is a cycle late at most; with Horovod's response cache on they appear only the first time a tensor is seen.
"""

import heapq
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ..errors import TraceError
from ..model.columns import TableBuilder
from ..model.ending import MAX_OPEN_SPANS, MAX_OPEN_TENSORS, OpenSpan, OpenTensor, RankEnd, make_end
from ..model.trace import (
    SPAN_COLUMNS,
    STEP_COLUMNS,
    Clock,
    Trace,
    TraceMeta,
)
from ..read.json_events import MAX_US, Event, args_of, iterate_events, nanoseconds
from ..read.source import Source
from ..scanning import check_proportion
from ..vocabulary import (
    CYCLE_START,
    NEGOTIATE_PREFIX,
    Category,
    LaneKind,
)
from .base import Progress
from .horovod_activities import TOP_LEVEL, category_of, nbytes_of
from .horovod_tables import Batch, Operations, cycles_table

NAME: Final = "horovod"

#: A tick is named after its rank; longer numbers are none (`MAX_RANKS`).
_RANK: Final = re.compile(r"[0-9]{1,7}\Z")
#: What a tensor's row takes while it is read, and the name of an activity, in texts.
_TEXTS_A_ROW: Final = 4
_TEXTS_A_NAME: Final = 3
#: Horovod nests activities two deep; what is nested deeper than this has no ends.
_MAX_NESTED: Final = 4


def sniff(head: bytes) -> bool:
    """Rows named by `process_name` with nothing but negotiation and collectives in them."""
    if b'"tlkit_shard"' in head or head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"[":
        return False
    if b"start_time_since_epoch_in_micros" in head:
        return True
    return b'"NEGOTIATE_' in head or (b'"CYCLE_START"' in head and b'"tid"' not in head)


@dataclass(slots=True)
class _Row:
    """One tensor's row while it is read."""

    name: str
    stack: list[tuple[str, int]] = field(default_factory=list)
    negotiation: tuple[int, int] = (-1, -1)
    ticks: "array[int] | None" = None
    """In turn a rank, and when it ticked."""
    batch: Batch | None = None
    start_ns: int = -1
    end_ns: int = -1
    nbytes: int = -1


class _Reader:
    """Reads the events of one file."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.dropped = source.dropped
        self.events = 0
        self.ranks_seen = -1
        self.ticks = 0
        self.epoch_unix_ns = 0
        self.first_ns = -1
        self.cycles = array("q")
        """When Horovod's background thread began a cycle, where that is marked."""
        self.ending = make_end(is_closed=None)
        """What rank 0 was about when the file ends, times as they are in the file."""
        self.spans = TableBuilder(SPAN_COLUMNS, {"rank": 0, "lane_kind": str(LaneKind.TENSOR), "args_row": -1})
        self.operations = Operations()
        self._batches = 0
        self._categories: dict[str, tuple[str, Category]] = {}
        """Names of activities, each kept once, with their categories."""
        self._renamed = 0
        self._rows: dict[int | str, _Row] = {}
        self._filling: Batch | None = None
        self._last_ns = 0

    def read(self, data: bytes) -> None:
        """Take in all events."""
        handlers = {"B": self._begin, "E": self._end, "X": self._tick, "i": self._instant, "M": self._metadata}
        for events in iterate_events(data, self.dropped):
            self.events += len(events)
            for event in events:
                handler = handlers.get(event.ph)
                if not abs(event.ts) < MAX_US:
                    self.dropped["impossible_time"] += 1
                elif handler is None:
                    self.dropped["unknown_phase"] += 1
                else:
                    handler(event)
            texts = _TEXTS_A_ROW * len(self._rows) + _TEXTS_A_NAME * (self._renamed + len(self._categories))
            check_proportion(self.source, nbytes=len(data), events=self.events, texts=texts)
        self.ending = self._end_of_file()
        self._stop_filling()
        for row in self._rows.values():
            self._close(row, self._last_ns)
            self._finish(row)

    def _open(self) -> Iterator[tuple[int, int, _Row, str]]:
        """What the file leaves open: begin, number, row, activity."""
        number = 0
        for row in self._rows.values():
            for name, start_ns in row.stack:
                yield start_ns, number, row, name
                number += 1

    def _end_of_file(self) -> RankEnd:
        """What rank 0 was about when the file ends.  Horovod has no mark for a clean end."""
        latest = heapq.nlargest(MAX_OPEN_SPANS, self._open(), key=lambda item: item[:2])
        waiting = (item for item in self._open() if item[3].startswith(NEGOTIATE_PREFIX))
        earliest = heapq.nsmallest(MAX_OPEN_TENSORS, waiting, key=lambda item: item[:2])
        end = make_end(
            is_closed=None,
            open_spans=[
                OpenSpan(lane=row.name, category=str(category_of(name)), name=name, start_ns=start_ns)
                for start_ns, _, row, name in reversed(latest)
            ],
            open_tensors=[
                OpenTensor(
                    name=row.name,
                    kind=TOP_LEVEL.get(name.removeprefix(NEGOTIATE_PREFIX), ""),
                    submitted_ns=start_ns,
                    is_negotiated=False,
                    asked_by=tuple(sorted(set(row.ticks[::2] if row.ticks else ()))),
                )
                for start_ns, _, row, name in earliest
            ],
        )
        count = sum(item[3].startswith(NEGOTIATE_PREFIX) for item in self._open())
        return replace(end, open_tensor_count=count)

    def end(self, first_ns: int) -> RankEnd:
        """The same, times from `first_ns` on."""
        end = self.ending
        return replace(
            end,
            open_spans=tuple(replace(span, start_ns=max(span.start_ns - first_ns, 0)) for span in end.open_spans),
            open_tensors=tuple(
                replace(tensor, submitted_ns=max(tensor.submitted_ns - first_ns, 0)) for tensor in end.open_tensors
            ),
        )

    def _close(self, row: _Row, at_ns: int) -> None:
        """End what is open on a row and has no end in the file."""
        while row.stack:
            name, start_ns = row.stack.pop()
            self.dropped["unclosed_begin"] += 1
            self._span(row, name, start_ns, max(at_ns, start_ns))

    def _at(self, event: Event) -> int:
        at_ns = nanoseconds(event.ts)
        if self.first_ns < 0:
            self.first_ns = at_ns
        self._last_ns = max(self._last_ns, at_ns)
        return at_ns

    def _row(self, event: Event) -> _Row:
        row = self._rows.get(event.pid)
        if row is None:
            row = self._rows[event.pid] = _Row(f"pid {event.pid}")
        return row

    def _metadata(self, event: Event) -> None:
        args = args_of(event)
        if event.name != "process_name":
            return
        name = args.get("name")
        if isinstance(name, str):
            row = self._row(event)
            self._renamed += row.name != name
            row.name = name
        epoch_us = args.get("start_time_since_epoch_in_micros")
        if isinstance(epoch_us, int):
            self.epoch_unix_ns = epoch_us * 1000

    def _known(self, name: str) -> tuple[str, Category]:
        """The one copy of an activity's name, and its category."""
        known = self._categories.get(name)
        if known is None:
            known = self._categories[name] = (name, category_of(name))
        return known

    def _stop_filling(self) -> None:
        """The next beginning belongs to another collective."""
        batch, self._filling = self._filling, None
        if batch is not None and not batch.begun and not batch.failed:
            self.operations.add(batch)

    def _begin(self, event: Event) -> None:
        at_ns, row = self._at(event), self._row(event)
        name = self._known(event.name)[0]
        is_top_level = name in TOP_LEVEL or name == "ERROR"
        if row.stack and (is_top_level or name.startswith(NEGOTIATE_PREFIX) or len(row.stack) >= _MAX_NESTED):
            # These begin on an empty row: an end is missing, and must not put all that follows out of step.
            self._close(row, at_ns)
        if is_top_level:
            self._finish(row)
            # A batch is a run of beginnings of one kind with nothing in between.
            batch = self._filling
            if batch is None or batch.kind != TOP_LEVEL.get(name, ""):
                self._stop_filling()
                batch = self._filling = Batch(self._batches, TOP_LEVEL.get(name, ""), failed=name == "ERROR")
                self._batches += not batch.failed
            batch.begun += 1
            row.batch, row.start_ns, row.end_ns = batch, at_ns, -1
        else:
            self._stop_filling()
            if name.startswith(NEGOTIATE_PREFIX):
                self._finish(row)
                row.ticks = None
                row.negotiation = (at_ns, -1)
        row.stack.append((name, at_ns))

    def _end(self, event: Event) -> None:
        at_ns, row = self._at(event), self._row(event)
        self._stop_filling()
        if not row.stack:
            self.dropped["orphan_end"] += 1
            return
        name, start_ns = row.stack.pop()
        self._span(row, name, start_ns, at_ns)
        if name.startswith(NEGOTIATE_PREFIX):
            row.negotiation = (row.negotiation[0], at_ns)
            return
        batch = row.batch
        if batch is None:
            return
        if row.stack:
            self._activity(batch, name, start_ns, at_ns)
            return
        args = args_of(event)
        row.end_ns = at_ns
        if "dtype" in args:
            row.nbytes = nbytes_of(args["dtype"], args.get("shape"))
            batch.dtype = self._known(str(args["dtype"]))[0]
        self._finish(row)

    def _activity(self, batch: Batch, name: str, start_ns: int, end_ns: int) -> None:
        """All tensors of a batch repeat its activities; what counts is from the first begin to the last end."""
        category = self._known(name)[1]
        if category is Category.COLLECTIVE:
            first, last = batch.operation
            batch.operation = (start_ns if first < 0 else min(first, start_ns), max(last, end_ns))
            batch.algorithm = name.partition("_")[0].lower()
        elif category is Category.FUSION:
            batch.copied(name, start_ns, end_ns)

    def _finish(self, row: _Row) -> None:
        """The collective has done with this row's tensor."""
        batch = row.batch
        if batch is None:
            return
        if row.start_ns >= 0:
            end_ns = row.end_ns if row.end_ns >= 0 else self._last_ns
            if not batch.failed:
                self.operations.add_tensor(
                    batch, row.name, row.nbytes, row.negotiation, row.start_ns, end_ns, row.ticks
                )
            row.negotiation, row.ticks, row.nbytes = (-1, -1), None, -1
        row.batch, row.start_ns = None, -1
        batch.begun -= 1
        if not batch.begun and batch is not self._filling and not batch.failed:
            self.operations.add(batch)

    def _span(self, row: _Row, name: str, start_ns: int, end_ns: int) -> None:
        category = str(self._known(name)[1])
        self.spans.add(row.name, category, name, start_ns, max(end_ns - start_ns, 0))

    def _tick(self, event: Event) -> None:
        at_ns, row = self._at(event), self._row(event)
        self._stop_filling()
        if row.stack and row.stack[-1][0].startswith(NEGOTIATE_PREFIX) and _RANK.match(event.name):
            rank = int(event.name)
            self.ranks_seen = max(self.ranks_seen, rank)
            self.ticks += 1
            if row.ticks is None:
                row.ticks = array("q")
            row.ticks.append(rank)
            row.ticks.append(at_ns)
        else:
            self.dropped["stray_tick"] += 1

    def _instant(self, event: Event) -> None:
        at_ns = self._at(event)
        if event.name == CYCLE_START:
            self.cycles.append(at_ns)


def read(sources: Sequence[Source], progress: Progress) -> Trace:
    """Read a timeline.

    Raises:
        TraceError: it holds no events, or there are several.
    """
    if len(sources) > 1:
        names = ", ".join(source.path.name for source in sources[:4])
        raise TraceError(f"{names}: these are timelines of {len(sources)} runs of Horovod; open them one at a time")
    source = sources[0]
    reader = _Reader(source)
    data = source.read()
    reader.read(data)
    progress(len(data), len(data))
    del data
    if not len(reader.spans):
        raise TraceError(
            f"{source.path} is a Horovod timeline without any operation: did the run end before its first?"
        )
    first_ns = max(reader.first_ns, 0)
    spans = reader.spans.finish()
    spans["start_ns"] -= first_ns
    notes = tuple(_notes(reader))
    collectives, tensors, arrivals = reader.operations.finish(first_ns)
    return Trace(
        meta=TraceMeta(
            format=NAME,
            files=(str(source.path),),
            ranks=(0,),
            size=reader.ranks_seen + 1,
            events=reader.events,
            dropped=dict(source.dropped),
            clock=Clock(method="single", uncertainty_ns=0),
            runtime="horovod",
            known_categories=frozenset({Category.NEGOTIATE, Category.QUEUE, Category.FUSION, Category.COLLECTIVE}),
            notes=notes,
            epoch_unix_ns=reader.epoch_unix_ns + first_ns if reader.epoch_unix_ns else 0,
            ends={0: reader.end(first_ns)},
        ),
        spans=spans,
        collectives=collectives,
        tensors=tensors,
        arrivals=arrivals,
        steps=TableBuilder(STEP_COLUMNS).finish(),
        counters=cycles_table(reader.cycles, first_ns),
    )


def _notes(reader: _Reader) -> list[str]:
    notes = [
        "Horovod records communication on rank 0 only: data loading, forward, backward and optimizer are not in this file"
    ]
    if reader.ranks_seen < 0:
        notes.append("no rank ticks: the number of ranks is unknown")
    negotiated, with_ticks = reader.operations.tensors, reader.operations.tensors_with_ticks
    if negotiated and with_ticks < negotiated / 2:
        notes.append(
            f"rank ticks on {with_ticks} of {negotiated} operations only, so a late rank cannot be identified; "
            "HOROVOD_CACHE_CAPACITY=0 makes Horovod record them all"
        )
    return notes
