"""Tables of a `Trace` out of the rows of XPlanes: spans, steps, collectives, launches."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pandas as pd

from ..model.columns import TableBuilder, assemble
from ..model.trace import COLLECTIVE_COLUMNS, LAUNCH_COLUMNS, SPAN_COLUMNS, STEP_COLUMNS
from .xplane_host import DEVICE_PLANE, DEVICE_STEPS, HOST_PLANE, Rows
from .xplane_names import called, collective_kind, is_loader_thread, is_wait
from .xplane_space import Line, Plane, Space

#: With fewer requests for a batch, or calls of a function, there is no rhythm.
_MIN_ROUNDS: Final = 4
_LAUNCH: Final = re.compile(r"^(?:cu|cuda|hip)[A-Z]\w*$")
_MAX_STEP: Final = 2**62
_CORRELATION: Final = "correlation_id"

Step = tuple[int, int, int]
"""Number, start and end."""


@dataclass(slots=True)
class RankPlanes:
    """One file, told apart."""

    space: Space
    rank: int
    rows: list[Rows]
    base_ns: int = 0
    """What to add to its times to get the wall clock's, or those of the run."""
    steps: list[Step] = field(default_factory=list)
    steps_from: str = ""
    """What marks them where they are not annotated."""

    @property
    def has_device(self) -> bool:
        """Whether it shows a device at work."""
        return any(rows.is_device for rows in self.rows)

    def first_ns(self) -> int:
        """When its first span begins, on its own clock."""
        return min((int(rows.start_ns().min()) for rows in self.rows if len(rows.kept)), default=0)


def make_spans(ranks: Sequence[RankPlanes], origin_ns: int) -> tuple[pd.DataFrame, list[tuple[Space, Rows]]]:
    """All spans, and the rows that they are of, in the same order."""
    parts: list[dict[str, Any]] = []
    kept: list[tuple[Space, Rows]] = []
    first = 0
    for item in ranks:
        for rows in item.rows:
            if not len(rows.kept):
                continue
            count = len(rows.kept)
            numbers: dict[str, int] = {}
            codes = np.array([numbers.setdefault(name, len(numbers)) for name in rows.texts()], np.int32)
            parts.append(
                {
                    "rank": np.full(count, item.rank, np.int32),
                    "lane": (np.zeros(count, np.int32), [rows.lane]),
                    "lane_kind": rows.kind_names(),
                    "category": rows.category_names(),
                    "name": (codes, list(numbers)),
                    "start_ns": rows.start_ns() + (item.base_ns - origin_ns),
                    "dur_ns": rows.dur_ns(),
                    "args_row": np.arange(first, first + count),
                }
            )
            kept.append((item.space, rows))
            first += count
    return assemble(SPAN_COLUMNS, parts), kept


def find_steps(space: Space) -> tuple[list[Step], str]:
    """Steps of a file, and what marks them: "" for annotations of the training itself."""
    host = [plane for plane in space.planes if HOST_PLANE.match(plane.name)]
    steps = _annotated(space, host)
    if steps:
        return _joined(steps), ""
    for plane in space.planes:
        lines = [line for line in plane.lines if DEVICE_PLANE.match(plane.name) and line.name == DEVICE_STEPS]
        found = [
            (int(plane.names[line.what[row]]), line.start_ns[row], line.start_ns[row] + line.dur_ns[row])
            for line in lines
            for row in range(len(line))
            if plane.names.get(line.what[row], "").isdecimal() and len(plane.names[line.what[row]]) < 18  # noqa: PLR2004  64 bits
        ]
        if found:
            return sorted(found, key=lambda step: step[1]), "the device's own marks"
    requests = _starts(host, is_wait)
    if len(requests) > _MIN_ROUNDS:
        return _between(requests), "requests for a batch"
    calls = _calls(host)
    return (_between(calls), "calls of the compiled function") if len(calls) > _MIN_ROUNDS else ([], "")


def _annotated(space: Space, host: Sequence[Plane]) -> list[Step]:
    """Steps of the annotation that comes most often, by time."""
    found: dict[str, list[Step]] = {}
    for plane in host:
        marks: dict[int, bool] = {}
        for line in plane.lines:
            if is_loader_thread(line.name):
                continue
            for row, what in enumerate(line.what):
                if marks.get(what, True) and plane.names.get(what):
                    number = space.stats(plane, line, row).get("step_num")
                    marks.setdefault(what, number is not None)
                    if isinstance(number, int) and 0 <= number < _MAX_STEP:
                        start = line.start_ns[row]
                        step = number, start, start + line.dur_ns[row]
                        found.setdefault(plane.names[what], []).append(step)
    most: list[Step] = max(found.values(), key=lambda steps: len(steps), default=[])  # noqa: PLW0108  typed so
    return sorted(most, key=lambda step: step[1])


def _joined(steps: list[Step]) -> list[Step]:
    """A step begins where the one before ends: loops ask for the next batch between two annotations."""
    result: list[Step] = []
    for number, start, end in steps:
        begin = result[-1][2] if result and result[-1][0] == number - 1 else start
        if result and start < result[-1][2]:  # nested or doubled
            continue
        result.append((number, begin, end))
    return result


def _starts(host: Sequence[Plane], chosen: Any) -> list[int]:
    """When events of such names begin that lie inside no other of them."""
    found: list[tuple[int, int]] = []
    for plane in host:
        wanted = {number for number, name in plane.names.items() if chosen(name)}
        for line in plane.lines:
            if not is_loader_thread(line.name):
                found += [
                    (line.start_ns[row], line.start_ns[row] + line.dur_ns[row])
                    for row, what in enumerate(line.what)
                    if what in wanted
                ]
    starts: list[int] = []
    over = -(2**62)
    for start, end in sorted(found):
        if start >= over:
            starts.append(start)
            over = end
    return starts


def _calls(host: Sequence[Plane]) -> list[int]:
    """When the compiled function that takes most of the time is called."""
    total: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for plane in host:
        for line in plane.lines:
            for row, what in enumerate(line.what):
                if name := called(plane.names.get(what, "")):
                    total[name] += line.dur_ns[row] + 1
                    count[name] += 1
    names = [name for name, _ in total.most_common() if count[name] > _MIN_ROUNDS]
    return _starts(host, lambda name: called(name) == names[0]) if names else []


def _between(starts: list[int]) -> list[Step]:
    """The last round has no end, so it is no step."""
    return [(number, begin, end) for number, (begin, end) in enumerate(itertools.pairwise(starts))]


def make_steps(ranks: Sequence[RankPlanes], origin_ns: int) -> pd.DataFrame:
    """The steps of all files."""
    builder = TableBuilder(STEP_COLUMNS)
    for item in ranks:
        shift = item.base_ns - origin_ns
        for number, start, end in item.steps:
            builder.add(item.rank, number, start + shift, end + shift)
    return builder.finish()


def make_collectives(ranks: Sequence[RankPlanes], origin_ns: int) -> pd.DataFrame:
    """One row a collective and rank, numbered in the order of their starts."""
    builder = TableBuilder(COLLECTIVE_COLUMNS)
    for item in ranks:
        found: list[tuple[int, int, str, int]] = []
        for rows in item.rows:
            chosen = rows.collectives
            if not chosen.any():
                continue
            texts = rows.texts()
            start, duration = rows.start_ns(), rows.dur_ns()
            for position in np.flatnonzero(chosen).tolist():
                kind = collective_kind(texts[position])
                nbytes = -1
                if rows.is_device:
                    told = item.space.stats(rows.plane, rows.line, int(rows.kept[position])).get("bytes_accessed")
                    nbytes = told if isinstance(told, int) and 0 <= told < _MAX_STEP else -1
                found.append((int(start[position]), int(duration[position]), kind, nbytes))
        shift = item.base_ns - origin_ns
        algorithm = "nccl" if item.has_device else ""
        for seq, (start_ns, dur_ns, kind, nbytes) in enumerate(sorted(found)):
            builder.add(
                item.rank, 0, seq, kind, "", "", algorithm, nbytes, 1, -1, -1, start_ns + shift, dur_ns, 0, "", -1, ""
            )  # fmt: skip
    return builder.finish()


def make_launches(ranks: Sequence[RankPlanes], origin_ns: int) -> pd.DataFrame:
    """Which call of the host launched what on a device, by their number."""
    builder = TableBuilder(LAUNCH_COLUMNS)
    for item in ranks:
        if not item.has_device:
            continue
        shift = item.base_ns - origin_ns
        calls: dict[int, tuple[str, int, int]] = {}
        for rows in item.rows:
            if rows.is_device:
                continue
            wanted = {number for number, name in rows.plane.names.items() if _LAUNCH.match(name)}
            for row in rows.kept.tolist():
                if rows.line.what[row] in wanted:
                    number = _correlation(item.space, rows.plane, rows.line, row)
                    if number >= 0:
                        calls[number] = rows.lane, rows.line.start_ns[row] + shift, rows.line.dur_ns[row]
        if not calls:
            continue
        launched = []
        for rows in item.rows:
            for row in rows.kept.tolist() if rows.is_device else ():
                number = _correlation(item.space, rows.plane, rows.line, row)
                lane, at, took = calls.get(number, ("", -1, 0))
                launched.append((item.rank, rows.line.start_ns[row] + shift, lane, at, took, number))
        for values in sorted(launched):
            builder.add(*values)
    return builder.finish()


def _correlation(space: Space, plane: Plane, line: Line, row: int) -> int:
    number = space.stats(plane, line, row).get(_CORRELATION)
    return number if isinstance(number, int) and 0 <= number < _MAX_STEP else -1
