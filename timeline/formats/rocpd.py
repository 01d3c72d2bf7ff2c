"""rocpd databases of rocprofv3 (`rocprofv3 --output-format rocpd`): what AMD devices did, and who launched it.

Two schemas are published.  In the first an activity has its times, process, thread, agent and stream; in the later one it has the
numbers of two times in a table of all times, and of the track that it lies on.  Both have called themselves 3 at some time, so
the columns decide.

Every process has tables of its own, whose names end in its id; views over all of them are made by the schema and are not run.
Every process that did something on a device, or pushed roctx ranges, is a rank.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np

from ..errors import TraceError
from ..model.trace import Trace
from ..read.source import Source
from ..vocabulary import Category, LaneKind
from .base import Progress
from .kineto_tables import kind_of
from .nsys import STEP_RANGE, trace_of
from .nsys_database import Call, Database, Export, Operation, Spans, opened, whole
from .nsys_device import NCCL, phase_at, phases_of
from .nsys_ranges import range_of_ours

NAME: Final = "rocpd"

_MAGIC: Final = b"SQLite format 3\0"
_DISPATCHES: Final = "rocpd_kernel_dispatch"
#: What the names of a process' tables end in: letters that cannot end a name in a query.
_SUFFIX: Final = re.compile(r"(?:_[0-9A-Za-z_]{1,64})?")
_TEXTS: Final = frozenset({"string", "name", "display_name", "kernel_name", "extdata", "hostname"})
_ADVICE: Final = "record it again with rocprofv3 --sys-trace --output-format rocpd"
_MARKERS: Final = "MARKER"
#: Where the later schema has what the first one has in each activity.
_NUMBERS_OF_TIMES: Final = {"start": "start_id", "end": "end_id"}
_TRACK: Final = "track_id"
_OF_TRACKS: Final = ("pid", "tid", "agent_id", "stream_id")

_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


def sniff(head: bytes) -> bool:
    """An sqlite database whose schema, which comes first, speaks of rocpd."""
    return head.startswith(_MAGIC) and b"rocpd_" in head


def read(sources: Sequence[Source], progress: Progress) -> Trace:
    """Read the databases of a job.

    Raises:
        TraceError: one is damaged, or there is nothing in them.
    """
    exports = []
    for number, source in enumerate(sources):
        exports.append(_read_export(source))
        progress(number + 1, len(sources))
    return trace_of(exports, NAME, _ADVICE)


def _read_export(source: Source) -> Export:
    export = Export(source, 0)
    with opened(source, "database of rocprofv3", _TEXTS, _ADVICE) as database:
        suffixes = sorted(table.removeprefix(_DISPATCHES) for table in database.tables if table.startswith(_DISPATCHES))
        suffixes = [suffix for suffix in suffixes if _SUFFIX.fullmatch(suffix)]
        if not suffixes:
            raise TraceError(f"{source.path} is an sqlite database, but none of rocprofv3")
        for suffix in suffixes:
            _Process(database, suffix, export).read()
    return export


class _Process:
    """The tables of one process."""

    def __init__(self, database: Database, suffix: str, export: Export) -> None:
        self._database, self._suffix, self._export = database, suffix, export
        self._strings = self._texts("rocpd_string", "string")
        self._pids = dict(zip(*self._columns("rocpd_info_process", ("id", "pid")), strict=True))
        self._threads = {
            number: f"{name} {tid}" if name else f"thread {tid}"
            for number, tid, name in zip(*self._columns("rocpd_info_thread", ("id", "tid", "name")), strict=True)
        }
        events = self._columns("rocpd_event", ("id", "category_id", "stack_id"))
        self._events = {
            number: (self._strings.get(category, ""), stack or 0)
            for number, category, stack in zip(*events, strict=True)
        }
        self.has_device = bool(self._columns(_DISPATCHES, ("id",))[0])

    def _columns(self, table: str, columns: Sequence[str]) -> list[list[Any]]:
        return self._database.read(table + self._suffix, columns)

    def _activities(self, table: str, columns: Sequence[str]) -> list[list[Any]]:
        """The same of a table of activities, in either schema."""
        present = self._database.columns_of(table + self._suffix)
        if "start" in present or "start_id" not in present:
            return self._columns(table, columns)
        of_tracks = [column if column not in _OF_TRACKS else _TRACK for column in columns]
        found = self._columns(table, [_NUMBERS_OF_TIMES.get(column, column) for column in of_tracks])
        return [
            [self._times.get(number) for number in values]
            if column in _NUMBERS_OF_TIMES
            else [self._tracks[column].get(number) for number in values]
            if column in _OF_TRACKS
            else values
            for column, values in zip(columns, found, strict=True)
        ]

    @cached_property
    def _times(self) -> dict[Any, Any]:
        return dict(zip(*self._columns("rocpd_timestamp", ("id", "value")), strict=True))

    @cached_property
    def _tracks(self) -> dict[str, dict[Any, Any]]:
        numbers, *columns = self._columns("rocpd_track", ("id", *_OF_TRACKS))
        return {name: dict(zip(numbers, column, strict=True)) for name, column in zip(_OF_TRACKS, columns, strict=True)}

    def _texts(self, table: str, column: str) -> dict[int, str]:
        return {number: text or "" for number, text in zip(*self._columns(table, ("id", column)), strict=True)}

    def read(self) -> None:
        """Add what the process did to the export."""
        self._read_regions()
        self._read_kernels()
        self._read_copies()

    def _whole_rows(self, columns: list[list[Any]]) -> list[list[Any]]:
        """Those rows that have a beginning, an end behind it, and a process: the first three columns."""
        start, end, process = columns[:3]
        timed = [row for row, at in enumerate(start) if at is not None and end[row] is not None and end[row] >= at]
        kept = [row for row in timed if process[row] is not None]
        self._export.source.dropped["impossible_time"] += len(start) - len(timed)
        self._export.source.dropped["broken"] += len(timed) - len(kept)
        self._export.source.dropped += Counter()  # without zeros
        return [[column[row] for row in kept] for column in columns]

    def _pid_of(self, column: Sequence[Any]) -> np.ndarray:
        return whole([self._pids.get(number, number) for number in column])

    def _read_regions(self) -> None:
        """Calls of HIP, HSA and RCCL, and roctx ranges, the steps among them."""
        start, end, pid, tid, name_id, event, more = self._whole_rows(
            self._activities("rocpd_region", ("start", "end", "pid", "tid", "name_id", "event_id", "extdata"))
        )
        if not start:
            return
        self._export.events += len(start)
        pids, starts, ends = self._pid_of(pid), whole(start), whole(end)
        lanes = [self._threads.get(number, f"thread {number}") for number in tid]
        names, kinds, categories = [], [], []
        for row, number in enumerate(name_id):
            of_event, stack = self._events.get(event[row], ("", 0))
            is_marker = of_event.startswith(_MARKERS)
            name = (_message_of(more[row]) if is_marker else "") or self._strings.get(number, "")
            kind, category = range_of_ours(name) if is_marker else (LaneKind.OTHER, Category.OTHER)
            names.append(name)
            kinds.append(LaneKind.HOST if self.has_device else kind)
            categories.append(category)
            at = int(starts[row])
            if is_marker:
                lanes[row] = f"roctx {lanes[row]}"
                self._note_step(name, int(pids[row]), at, int(ends[row]))
            elif stack:
                call = Call(at, int(ends[row]) - at, lanes[row], -1 if tid[row] is None else int(tid[row]))
                known = self._export.launches.setdefault((int(pids[row]), stack), call)
                if call.start < known.start:  # the outermost of calls that make one
                    self._export.launches[int(pids[row]), stack] = call
        self._export.spans.append(Spans(pids, starts, ends, names, lanes, kinds, categories))

    def _note_step(self, name: str, pid: int, start_ns: int, end_ns: int) -> None:
        match = STEP_RANGE.match(name)
        if match:
            number = int(match[1]) if match[1] and len(match[1]) < 18 else len(self._export.steps)  # noqa: PLR2004  64 bits
            self._export.steps.append((pid, number, start_ns, end_ns))

    def _read_kernels(self) -> None:
        start, end, pid, agent, kernel, stream, event = self._whole_rows(
            self._activities(_DISPATCHES, ("start", "end", "pid", "agent_id", "kernel_id", "stream_id", "event_id"))
        )
        symbols = self._texts("rocpd_info_kernel_symbol", "display_name")
        mangled = self._texts("rocpd_info_kernel_symbol", "kernel_name")
        names = [symbols.get(number) or mangled.get(number, "") for number in kernel]
        numbers = dict(zip(*self._columns("rocpd_info_agent", ("id", "type_index")), strict=True))
        for process, number in zip(self._pid_of(pid).tolist(), agent, strict=True):
            index = numbers.get(number)
            self._export.device_of.setdefault(process, number if index is None else index)
        is_rccl = [NCCL.search(name) is not None for name in names]
        self._add_device(
            start, end, pid, stream, event, names, is_rccl, [Category.COLLECTIVE if rccl else None for rccl in is_rccl]
        )

    def _read_copies(self) -> None:
        start, end, pid, name_id, stream, event = self._whole_rows(
            self._activities("rocpd_memory_copy", ("start", "end", "pid", "name_id", "stream_id", "event_id"))
        )
        names = [self._strings.get(number, "") for number in name_id]
        kinds = [Category.H2D if "HOST_TO_DEVICE" in name.upper() else None for name in names]
        self._add_device(start, end, pid, stream, event, names, [False] * len(names), kinds)

    def _add_device(
        self,
        start: list[Any],
        end: list[Any],
        pid: list[Any],
        stream: list[Any],
        event: list[Any],
        names: list[str],
        is_rccl: list[bool],
        categories: list[Category | None],
    ) -> None:
        """Add activities of a device; their category is what the host was about when it launched them, unless it is known."""
        if not start:
            return
        export = self._export
        export.events += len(start)
        pids, starts, ends = self._pid_of(pid), whole(start), whole(end)
        stacks = [self._events.get(number, ("", 0))[1] for number in event]
        calls = [export.launches.get(key) for key in zip(pids.tolist(), stacks, strict=True)]
        export.launched += zip(pids.tolist(), starts.tolist(), calls, stacks, strict=True)
        phases = phases_of(export)
        export.spans.append(
            Spans(
                pids,
                starts,
                ends,
                names,
                [f"stream {number}" for number in whole(stream).tolist()],
                [LaneKind.COMMUNICATION if rccl else LaneKind.COMPUTE for rccl in is_rccl],
                [
                    category or phase_at(phases, process, -1 if call is None else call.start)
                    for category, process, call in zip(categories, pids.tolist(), calls, strict=True)
                ],
            )
        )
        export.collectives += [
            Operation(
                process=int(pids[row]),
                kind=kind_of(names[row]),
                launched=-1 if call is None else call.start,
                start=int(starts[row]),
                end=int(ends[row]),
                thread=-1 if call is None else call.thread,
            )
            for row, (rccl, call) in enumerate(zip(is_rccl, calls, strict=True))
            if rccl
        ]


def _message_of(more: str | None) -> str:
    """What a roctx range is called, where that is not its name: `message` in a JSON object."""
    if not more or "message" not in more:
        return ""
    try:
        said = _decode(more).get("message")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ""
    return said if isinstance(said, str) else ""
