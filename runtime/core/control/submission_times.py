"""When ranks have submitted their tensors: as a message says it, and as the coordinator keeps it until they are executed.

Only a timeline asks for it.  These are lists and no arrays: with a few ranks, whose trainings have had all caches in between, a
function of NumPy takes longer than what it saves.  Gradients of a bucket are submitted at one time, which is one number that
stands in many places, so that even with very many ranks nothing has to be compared.
"""

from collections.abc import Sequence
from typing import Final

from .messages import pairs

Times = list[int]
"""When each of several tensors was submitted (ns)."""

#: Of a tensor whose rank does not say.  Later than any other, so that the latest of several tells whether one is unknown.
_UNKNOWN: Final = 1 << 63


def times_of(runs: Sequence[int], offset_ns: int, count: int) -> Times | None:
    """What `Ready.times` says, on the coordinator's clock; None if it says nothing.

    Args:
        runs: see `to_runs`.
        offset_ns: what to add to the rank's clock.
        count: of tensors that the message is about.

    Raises:
        ValueError: it is about another number of tensors.
    """
    if not runs:
        return None
    if sum(runs[::2]) != count or len(runs) % 2:
        raise ValueError(f"a rank says when it has submitted {sum(runs[::2])} tensors, and asks for {count}")
    if len(runs) == 2:  # noqa: PLR2004  by far the most frequent case
        return [runs[1] + offset_ns] * count
    return [at_ns for many, told_ns in pairs(runs) for at_ns in [told_ns + offset_ns] * many]


class SubmissionTimes:
    """When each rank of a process set has asked for each tensor that has an id, the last time."""

    def __init__(self, ranks: int) -> None:
        """Nothing is known.

        Args:
            ranks: how many there are.
        """
        self._times: list[Times] = [[] for _ in range(ranks)]
        """By rank, and by offset of the id."""
        self.are_told = False
        """Whether any rank has ever said something."""

    def note(self, row: int, ranges: Sequence[int], base: int, times_ns: Times | None, width: int) -> None:
        """A rank asks for tensors.

        Args:
            row: of the rank.
            ranges: the ids (see `to_ranges`).
            base: the id with offset 0.
            times_ns: on the coordinator's clock; None if the rank does not say.
            width: offsets that there are.
        """
        self.are_told = True
        times = self._times[row]
        if len(times) < width:
            times += [_UNKNOWN] * (width - len(times))
        position = 0
        for start, count in pairs(ranges):
            part = [_UNKNOWN] * count if times_ns is None else times_ns[position : position + count]
            times[start - base : start - base + count] = part
            position += count

    def of_rank(self, row: int, offset: int) -> int:
        """When a rank has asked for a tensor; 0 if it does not say."""
        times = self._times[row]
        at_ns = times[offset] if offset < len(times) else _UNKNOWN
        return 0 if at_ns == _UNKNOWN else at_ns

    def of(self, offset: int) -> tuple[int, ...]:
        """When each rank has asked for a tensor; 0 for one that does not say."""
        return tuple(self.of_rank(row, offset) for row in range(len(self._times)))

    def last(self, ranges: Sequence[int], base: int) -> Times:
        """When each rank had asked for all of these tensors; empty if some rank does not say.

        Args:
            ranges: the ids.
            base: the id with offset 0.
        """
        if not self.are_told:
            return []
        parts = [(start - base, start - base + count) for start, count in pairs(ranges)]
        last_ns: Times = []
        for times in self._times:
            at_ns = max([_latest(times[start:end]) for start, end in parts])
            if at_ns == _UNKNOWN:
                return []
            last_ns.append(at_ns)
        return last_ns

    def drop_lowest(self, count: int) -> None:
        """The first so many offsets are gone, and all others are that much lower."""
        for times in self._times:
            del times[:count]


def _latest(times: Times) -> int:
    """The latest of several; none at all is unknown."""
    if not times:
        return _UNKNOWN
    first = times[0]
    return first if times.count(first) == len(times) else max(times)
