"""The parts of a step, added up: what stays of a step that is not recorded in full.

One step of one rank is eleven numbers of whole microseconds: how long after the step before it began, how long it took, and
how long the training thread spent in each of PARTS.  A few dozen bytes a step, so that this may stay on for ever.
"""

from collections.abc import Sequence
from typing import Final

from ..vocabulary import LANE_TIDS, SYNCHRONIZE, Category, LaneKind

WAIT: Final = "wait"
"""The training thread blocked until collectives are done (SYNCHRONIZE)."""

#: What is told of a step, in the order of its numbers; what is left of the step is `other`.
PARTS: Final = (
    str(Category.DATA),
    str(Category.H2D),
    str(Category.FORWARD),
    str(Category.BACKWARD),
    WAIT,
    str(Category.OPTIMIZER),
    str(Category.CHECKPOINT),
)
_POSITION: Final = {part: position for position, part in enumerate(PARTS)}

#: Where spans lie in each other the first of these counts, as in the breakdown of a full trace.
_INNER_FIRST: Final = tuple(
    _POSITION[part]
    for part in (
        WAIT,
        str(Category.CHECKPOINT),
        str(Category.H2D),
        str(Category.DATA),
        str(Category.FORWARD),
        str(Category.BACKWARD),
        str(Category.OPTIMIZER),
    )
)
_TRAINING: Final = {LANE_TIDS[LaneKind.COMPUTE], LANE_TIDS[LaneKind.DATA]}

#: A step with more spans than this is told by its first ones: nobody's loop has as many parts.
MAX_SPANS: Final = 100_000

Sums = tuple[int, ...]
"""Start and duration of a step, then PARTS; ns."""


class StepSums:
    """Adds up the spans of the training thread, step by step."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, int]] = []
        """Start, end (ns) and position in PARTS."""

    def add(self, name: str, category: str, tid: int, start_ns: int, end_ns: int) -> None:
        """Take note of a span."""
        if tid not in _TRAINING or len(self._spans) >= MAX_SPANS:
            return
        position = _POSITION.get(WAIT if name == SYNCHRONIZE else category)
        if position is not None and end_ns > start_ns:
            self._spans.append((start_ns, end_ns, position))

    def finish(self, start_ns: int, end_ns: int) -> Sums:
        """The sums of the step that lies between these times; spans that reach beyond it count for the next one, too."""
        inside = [
            (max(begin, start_ns), min(end, end_ns), position)
            for begin, end, position in self._spans
            if begin < end_ns and end > start_ns
        ]
        self._spans = [span for span in self._spans if span[1] > end_ns]
        return (start_ns, end_ns - start_ns, *_self_times(inside))


def _self_times(spans: Sequence[tuple[int, int, int]]) -> list[int]:
    """How long each part is the innermost one."""
    edges = sorted(
        [(begin, 1, position) for begin, _, position in spans] + [(end, -1, position) for _, end, position in spans]
    )
    depth = [0] * len(PARTS)
    total = [0] * len(PARTS)
    before = 0
    for at_ns, change, position in edges:
        if at_ns > before:
            inner = next((each for each in _INNER_FIRST if depth[each]), None)
            if inner is not None:
                total[inner] += at_ns - before
        before = at_ns
        depth[position] += change
    return total
