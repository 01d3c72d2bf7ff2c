"""The host's and the devices' lines of an XPlane, row by row: lane, kind, category, name."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ..vocabulary import STAGE_FUNCTION, Category, LaneKind
from .hlo_names import Phases
from .xplane_names import (
    ITERATOR,
    called,
    is_collective,
    is_copy_to_device,
    is_loader_thread,
    is_mark,
    is_operator,
    is_wait,
    phase_of,
)
from .xplane_space import Line, Plane, Space
from .xplane_stages import Stages, covered

HOST_PLANE: Final = re.compile(r"^/host:(?!metadata)")
DEVICE_PLANE: Final = re.compile(r"^/device:(?P<name>\w+:\d+)")
_STREAM: Final = re.compile(r"^Stream #")
_TPU_ACTIVITIES: Final = frozenset({"XLA Ops", "Async XLA Ops", "SparseCore Ops"})
DEVICE_STEPS: Final = "Steps"

_CATEGORIES: Final = tuple(map(str, Category))
_NUMBER: Final = {category: number for number, category in enumerate(Category)}
_KINDS: Final = tuple(map(str, LaneKind))
_KIND_NUMBER: Final = {kind: number for number, kind in enumerate(LaneKind)}


@dataclass(slots=True)
class Rows:
    """Spans of one line, of those events that are kept."""

    plane: Plane
    line: Line
    lane: str
    kept: np.ndarray
    """Rows of the line."""
    kind: np.ndarray
    category: np.ndarray
    names: dict[int, str] = field(default_factory=dict)
    """Other names than the events', by row of the line."""
    is_device: bool = False

    @property
    def collectives(self) -> np.ndarray:
        """Which of `kept` are collectives at work."""
        found: np.ndarray = self.kind == _KIND_NUMBER[LaneKind.COMMUNICATION]
        return found

    def start_ns(self) -> np.ndarray:
        """Of `kept`, on the file's clock."""
        chosen: np.ndarray = np.frombuffer(self.line.start_ns, np.int64)[self.kept]
        return chosen

    def dur_ns(self) -> np.ndarray:
        """Of `kept`."""
        chosen: np.ndarray = np.frombuffer(self.line.dur_ns, np.int64)[self.kept]
        return chosen

    def texts(self) -> list[str]:
        """Of `kept`, the names of the spans."""
        what, names = self.line.what, self.plane.names
        return [self.names.get(row) or names[what[row]] for row in self.kept.tolist()]

    def kind_names(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """Kinds of lanes as numbers with their texts."""
        return self.kind, _KINDS

    def category_names(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """Categories as numbers with their texts."""
        return self.category, _CATEGORIES


@dataclass(slots=True)
class _What:
    """What all events of a name are."""

    category: Category = Category.OTHER
    is_wait: bool = False
    is_stage: bool = False
    is_mark: bool = False
    is_collective: bool = False


def is_device_plane(plane: Plane) -> bool:
    """Whether a plane shows a device at work."""
    return DEVICE_PLANE.match(plane.name) is not None and any(len(line) for line in _activities(plane))


def _activities(plane: Plane) -> list[Line]:
    """Lines of a device that are its own; others are sums of these for the viewer."""
    streams = [line for line in plane.lines if _STREAM.match(line.name)]
    return streams or [line for line in plane.lines if line.name in _TPU_ACTIVITIES]


def host_rows(space: Space, plane: Plane, phases: Phases, *, has_device: bool) -> Iterable[Rows]:
    """Spans of the threads of the host."""
    stages = Stages(space, plane)
    whats = _describe(space, plane, phases)
    for number, line in enumerate(plane.lines):
        if not len(line):
            continue
        names = stages.of_line(number)
        kept, numbers = _kept(space, plane, line, whats)
        told = [whats[what] for what in numbers]
        kind, category = _kinds_and_categories(line, kept, told, names, has_device=has_device)
        yield Rows(plane, line, line.name or f"thread {line.number}", kept, kind, category, names)


def device_rows(space: Space, plane: Plane, phases: Phases) -> Iterable[Rows]:
    """Spans of the streams of a device."""
    match = DEVICE_PLANE.match(plane.name)
    short = match["name"] if match else plane.name
    whats = _describe(space, plane, phases)
    for line in _activities(plane):
        if not len(line):
            continue
        kept, numbers = _kept(space, plane, line, whats)
        is_communication = np.array([whats[what].is_collective for what in numbers], bool)
        copies = is_copy_to_device(line.name.partition("(")[2])
        category = np.array(
            [
                _NUMBER[Category.H2D if copies and not whats[what].is_collective else whats[what].category]
                for what in numbers
            ],
            np.int8,
        )
        kind = np.where(is_communication, _KIND_NUMBER[LaneKind.COMMUNICATION], _KIND_NUMBER[LaneKind.COMPUTE])
        yield Rows(plane, line, f"{short} {line.name}", kept, kind.astype(np.int8), category, is_device=True)


def _describe(space: Space, plane: Plane, phases: Phases) -> dict[int, _What]:
    """What the events of each name are: by the name, else by what the compiler says of the operator."""
    first: dict[int, tuple[Line, int]] = {}
    for line in plane.lines:
        for row, number in enumerate(line.what):
            if number not in first:
                first[number] = line, row
    found = {}
    for number, (line, row) in first.items():
        name = plane.names.get(number, "")
        what = _What(
            is_wait=is_wait(name),
            is_stage=name.startswith(ITERATOR),
            is_mark=is_mark(name),
            is_collective=is_collective(name),
        )
        if what.is_collective:
            what.category = Category.COLLECTIVE
        elif is_operator(name):
            what.category = phase_of(name)
        elif is_copy_to_device(name):
            what.category = Category.H2D
        elif not (what.is_wait or what.is_stage or what.is_mark or called(name)):
            stats = space.stats(plane, line, row) | space.stats_of_name(plane, number)
            what.category = _compiled(stats, name, phases)
        found[number] = what
    return found


def _compiled(stats: dict[str, int | float | str | None], name: str, phases: Phases) -> Category:
    """What part of a step an operator of XLA, or a kernel, belongs to; `other` for what is neither."""
    scope = stats.get("tf_op")
    if isinstance(scope, str) and scope:
        return phase_of(scope)
    operator = stats.get("hlo_op")
    if operator is None and "hlo_category" in stats:
        operator = name
    if isinstance(operator, str):
        scope = phases.scope_of(str(stats.get("hlo_module", "")), operator)
        return phase_of(scope) if scope else Category.FORWARD
    return Category.OTHER


def _kept(space: Space, plane: Plane, line: Line, whats: dict[int, _What]) -> tuple[np.ndarray, list[int]]:
    """Rows that become spans, and what they are."""
    rows, numbers, nameless = [], [], 0
    names = plane.names
    for row, what in enumerate(line.what):
        if not names.get(what):
            nameless += 1
        elif not whats[what].is_mark:
            rows.append(row)
            numbers.append(what)
    if nameless:
        space.source.dropped["without_name"] += nameless
    return np.array(rows, np.int64), numbers


def _kinds_and_categories(
    line: Line, kept: np.ndarray, told: list[_What], names: dict[int, str], *, has_device: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Of the rows of a thread of the host."""
    start = np.frombuffer(line.start_ns, np.int64)
    end = start + np.frombuffer(line.dur_ns, np.int64)
    functions = np.array([row for row, name in names.items() if name.endswith(STAGE_FUNCTION)], np.int64)
    waits = kept[np.array([what.is_wait for what in told], bool)]
    if is_loader_thread(line.name):
        is_loader, is_waiting = np.ones(len(kept), bool), np.zeros(len(kept), bool)
    else:
        is_waiting = covered(start[kept], end[kept], start[waits], end[waits])
        is_loader = covered(start[kept], end[kept], start[functions], end[functions]) & ~is_waiting
    is_collective = np.array([what.is_collective for what in told], bool) & ~is_loader & (not has_device)
    category = np.array([_NUMBER[what.category] for what in told], np.int8)
    if has_device:
        category[:] = _NUMBER[Category.OTHER]
    is_named = np.array([row in names for row in kept.tolist()], bool)
    category[is_loader] = np.where(is_named[is_loader], _NUMBER[Category.DATA], _NUMBER[Category.OTHER])
    category[is_waiting] = _NUMBER[Category.DATA]
    category[is_collective] = _NUMBER[Category.COLLECTIVE]
    kind = np.full(len(kept), _KIND_NUMBER[LaneKind.HOST if has_device else LaneKind.COMPUTE], np.int8)
    kind[is_loader] = _KIND_NUMBER[LaneKind.WORKER]
    kind[is_waiting] = _KIND_NUMBER[LaneKind.DATA]
    kind[is_collective] = _KIND_NUMBER[LaneKind.COMMUNICATION]
    return kind, category
