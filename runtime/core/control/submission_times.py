"""When ranks have submitted their tensors: as a message says it, and as the coordinator keeps it until they are executed.

Only a timeline asks for it.  Gradients of a bucket are submitted at one time, so that what is done for each message, and for each
collective, does not depend on how many tensors there are.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from .messages import pairs

Times = np.ndarray | int
"""When each of several tensors was submitted (ns): int64 of each of them, or one number for all."""

#: Of a tensor whose rank does not say.  Later than any other, so that the latest of several tells whether one is unknown.
_UNKNOWN: Final = int(np.iinfo(np.int64).max)


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
        return runs[1] + offset_ns
    return np.repeat(np.array(runs[1::2], np.int64) + offset_ns, runs[::2])


def part_of(times: Times | None, start: int, count: int) -> Times | None:
    """Of the tensors from number `start` on."""
    return times[start : start + count] if isinstance(times, np.ndarray) else times


def time_of(times: Times | None, place: int) -> int:
    """Of one tensor; 0 if the rank does not say."""
    if times is None:
        return 0
    return int(times[place]) if isinstance(times, np.ndarray) else times


class SubmissionTimes:
    """When each rank of a process set has asked for each tensor that has an id, the last time."""

    def __init__(self, ranks: int) -> None:
        """Nothing is known.

        Args:
            ranks: how many there are.
        """
        self._times = np.full((ranks, 0), _UNKNOWN)
        """By rank and by offset of the id."""
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
        if self._times.shape[1] < width:
            grown = np.full((len(self._times), max(64, 2 * width)), _UNKNOWN)
            grown[:, : self._times.shape[1]] = self._times
            self._times = grown
        position = 0
        for start, count in pairs(ranges):
            part = _UNKNOWN if times_ns is None else part_of(times_ns, position, count)
            self._times[row, start - base : start - base + count] = part
            position += count

    def of_rank(self, row: int, offset: int) -> int:
        """When a rank has asked for a tensor; 0 if it does not say."""
        at_ns = int(self._times[row, offset]) if offset < self._times.shape[1] else _UNKNOWN
        return 0 if at_ns == _UNKNOWN else at_ns

    def of(self, offset: int) -> tuple[int, ...]:
        """When each rank has asked for a tensor; 0 for one that does not say."""
        return tuple(self.of_rank(row, offset) for row in range(len(self._times)))

    def last(self, ranges: Sequence[int], base: int) -> list[int]:
        """When each rank had asked for all of these tensors; empty if some rank does not say.

        Args:
            ranges: the ids.
            base: the id with offset 0.
        """
        if not self.are_told:
            return []
        parts = [self._times[:, start - base : start - base + count] for start, count in pairs(ranges)]
        last_ns: list[int] = (parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)).max(axis=1).tolist()
        return [] if _UNKNOWN in last_ns else last_ns

    def drop_lowest(self, count: int) -> None:
        """The first so many offsets are gone, and all others are that much lower."""
        self._times = np.ascontiguousarray(self._times[:, count:])
