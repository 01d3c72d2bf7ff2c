"""Which stage of a tf.data pipeline the work of each thread is for.

A stage is an iterator, named by its way from the root (`Iterator::Root::Prefetch::Map`).  Where a stage works on threads of its
own, an event `…Produce` holds what it does for one element, and the user's function runs wherever a thread is free, known by the
number of the context that it was started in.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ..vocabulary import STAGE_FUNCTION, STAGE_PRODUCE
from .xplane_names import CAPTURED, FUNCTION_RUN, ITERATOR, PROCESS, PRODUCE
from .xplane_space import Line, Plane, Space

#: Instances of one stage, as `ParallelInterleaveV4[3]` has them.
_INSTANCE: Final = re.compile(r"\[\d+\]")
_ALL_BITS: Final = 0xFFFF_FFFF_FFFF_FFFF


def stage_of(name: str) -> str:
    """A stage by the name of its event: instances of one are the same.

    >>> stage_of("Iterator::Root::ParallelInterleaveV4[1]::TFRecord")
    'Iterator::Root::ParallelInterleaveV4::TFRecord'
    """
    return _INSTANCE.sub("", name)


@dataclass(slots=True, eq=False)
class _Work:
    """An event in which a stage works, and the stage as soon as it is known."""

    stage: str = ""


class Stages:
    """Finds stages in all lines of a plane of the host."""

    def __init__(self, space: Space, plane: Plane) -> None:
        self._space, self._plane = space, plane
        self._contexts: dict[int, _Work] = {}
        self._roles = {number: _role(name) for number, name in plane.names.items()}
        self._found: list[dict[int, tuple[str, _Work]]] = []
        for line in plane.lines:
            self._found.append(self._look_at(line))
        for line, found in zip(plane.lines, self._found, strict=True):
            self._join(line, found)

    def of_line(self, number: int) -> dict[int, str]:
        """Names of spans by row, for those that work for a stage."""
        return {row: f"{work.stage}{suffix}" for row, (suffix, work) in self._found[number].items() if work.stage}

    def _look_at(self, line: Line) -> dict[int, tuple[str, _Work]]:
        """Follow a line in order of time, with what is open at each moment."""
        found: dict[int, tuple[str, _Work]] = {}
        open_: list[tuple[int, str, _Work]] = []
        for row in _with_roles(line, self._roles):
            start, role = line.start_ns[row], self._roles.get(line.what[row], "")
            while open_ and open_[-1][0] <= start:
                open_.pop()
            holder = open_[-1][2] if open_ else None
            is_in_function = bool(open_) and open_[-1][1] == CAPTURED
            end = start + line.dur_ns[row]
            if role == ITERATOR:
                work = _Work(stage_of(self._plane.names[line.what[row]]))
                if open_ and open_[-1][1] == "produce" and holder is not None:
                    holder.stage = holder.stage or work.stage.rpartition("::")[0]
                found[row] = "", work
                open_.append((end, role, work))
            elif role == "produce":
                work = _Work()
                found[row] = STAGE_PRODUCE, work
                open_.append((end, role, work))
            elif role == CAPTURED and holder is not None:
                if not is_in_function:
                    found[row] = STAGE_FUNCTION, holder
                open_.append((end, role, holder))
            elif role == FUNCTION_RUN and holder is not None and is_in_function:
                context = self._context(line, row, "_p")
                if context:
                    self._contexts[context] = holder
        return found

    def _join(self, line: Line, found: dict[int, tuple[str, _Work]]) -> None:
        """What the executor runs on this line for functions that were started elsewhere."""
        inside = _cover(line, [row for row, (suffix, _) in found.items() if suffix == STAGE_FUNCTION])
        for row in range(len(line)):
            if self._roles.get(line.what[row], "") == PROCESS and not inside[row]:
                work = self._contexts.get(self._context(line, row, "_c"))
                if work is not None:
                    found[row] = STAGE_FUNCTION, work

    def _context(self, line: Line, row: int, key: str) -> int:
        value = self._space.stats(self._plane, line, row).get(key)
        return value & _ALL_BITS if isinstance(value, int) else 0


def _role(name: str) -> str:
    if name.startswith(ITERATOR):
        return ITERATOR
    if name.startswith(CAPTURED):
        return CAPTURED
    if name in {FUNCTION_RUN, PROCESS}:
        return name
    return "produce" if PRODUCE.match(name) else ""


def _with_roles(line: Line, roles: dict[int, str]) -> list[int]:
    """Rows that matter, outer before inner."""
    rows = [row for row in range(len(line)) if roles.get(line.what[row])]
    return sorted(rows, key=lambda row: (line.start_ns[row], -line.dur_ns[row]))


def _cover(line: Line, rows: Sequence[int]) -> np.ndarray:
    """Which events of a line lie inside one of `rows`: bool[event]."""
    start = np.frombuffer(line.start_ns, np.int64) if len(line) else np.zeros(0, np.int64)
    end = start + (np.frombuffer(line.dur_ns, np.int64) if len(line) else 0)
    chosen = np.array(rows, np.int64)
    return covered(start, end, start[chosen], end[chosen])


def covered(begun: np.ndarray, over: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Which events lie inside one of some intervals, which may nest and overlap: bool[event].

    Args:
        begun: when each event begins.
        over: when each event ends.
        starts: of the intervals, in any order.
        ends: of the intervals.
    """
    if not len(starts):
        return np.zeros(len(begun), bool)
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    position = np.searchsorted(starts, begun, side="right") - 1
    last = reach[np.maximum(position, 0)]
    inside: np.ndarray = (position >= 0) & (begun < last) & (over <= last)
    return inside
