"""Sets of small integers as Python integers: bit k is set if k is in the set.

One operation on such a set costs the same for one element as for a thousand, which keeps the coordinator's work in the
steady state independent of how many tensors a model has.
"""

from collections.abc import Iterable, Iterator, Sequence


def of_ranges(ranges: Sequence[int], base: int = 0) -> int:
    """The set of the numbers in `ranges` (start, count, start, count …), each less `base`.

    >>> bin(of_ranges([4, 3, 9, 1], base=4))
    '0b100111'
    """
    bits = 0
    for start, count in zip(ranges[::2], ranges[1::2], strict=True):
        bits |= ((1 << count) - 1) << (start - base)
    return bits


def of(numbers: Iterable[int]) -> int:
    """The set of `numbers`."""
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits


def members(bits: int) -> Iterator[int]:
    """The numbers in a set, ascending.

    >>> list(members(0b100111))
    [0, 1, 2, 5]
    """
    first = 0
    while bits:
        gap = (bits & -bits).bit_length() - 1
        bits >>= gap
        run = (~bits & (bits + 1)).bit_length() - 1
        first += gap
        yield from range(first, first + run)
        bits >>= run
        first += run


class Tally:
    """Counts, for every number, how many sets it was in.

    The counts are kept in binary, transposed: plane k holds bit k of all counts, so that adding a set is an addition with
    carry over whole planes and takes as many operations as the largest count has digits.
    """

    def __init__(self) -> None:
        self._planes: list[int] = []

    def add(self, bits: int) -> None:
        """Count each number in the set once more."""
        planes, level = self._planes, 0
        while bits:
            if level == len(planes):
                planes.append(0)
            planes[level], bits = planes[level] ^ bits, planes[level] & bits
            level += 1

    def equal_to(self, count: int) -> int:
        """The set of the numbers that were counted exactly `count` times (at least once)."""
        if count <= 0 or count.bit_length() > len(self._planes):
            return 0
        found = -1
        for level, plane in enumerate(self._planes):
            found &= plane if count >> level & 1 else ~plane
        return found

    def positive(self) -> int:
        """The set of the numbers that were counted at all."""
        found = 0
        for plane in self._planes:
            found |= plane
        return found

    def clear(self, bits: int) -> None:
        """Set the counts of the numbers in the set to zero."""
        keep = ~bits
        self._planes = [plane & keep for plane in self._planes]

    def drop_lowest(self, count: int) -> None:
        """Forget the numbers below `count` and renumber the rest from 0."""
        self._planes = [plane >> count for plane in self._planes]
