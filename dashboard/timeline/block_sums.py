"""Counts, sums and longest spans of stretches of rows, by kind of span, without looking at each span.

What lies whole in a stretch is summed in blocks once for all questions; only spans near the ends of a stretch, which it may cut,
are looked at one by one.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from .rows import Rows
from .times import Values

#: Positions of a block: few enough that the two cut blocks of a row cost little, many enough that there are few blocks.
BLOCK: Final = 512
#: Cells of the tables that are filled at a time.
_CELLS: Final = 2**20


@dataclass(frozen=True, slots=True)
class Stretches:
    """Positions [first, last) of some rows."""

    row: np.ndarray
    """int64[k]."""
    first: np.ndarray
    last: np.ndarray

    @property
    def count(self) -> int:
        """Positions in all of them."""
        return int((self.last - self.first).sum())

    def positions(self) -> np.ndarray:
        """All of them, one after the other: int64[count]."""
        return _spread(self.first, self.last)

    def rows(self) -> np.ndarray:
        """The row of each position."""
        return np.repeat(self.row, self.last - self.first)


@dataclass(frozen=True, slots=True)
class Keys:
    """How spans are grouped: a span's key is that of its row and that of its kind together."""

    of_row: np.ndarray
    """int64[row]."""
    of_kind: np.ndarray
    """int64[kind]."""
    size: int
    """All keys are below."""


@dataclass(frozen=True, slots=True)
class Sums:
    """By key: how many spans, how long together, and the longest, ns: int64[keys] each."""

    counts: np.ndarray
    sums_ns: np.ndarray
    longest_ns: np.ndarray


def sum_up(keys: np.ndarray, lengths: np.ndarray, size: int) -> Sums:
    """Sums of some spans.

    Args:
        keys: int64[n], below `size`.
    """
    longest = np.zeros(size, dtype=np.int64)
    np.maximum.at(longest, keys, lengths)
    # Doubles are exact up to 2**53 ns, which are a hundred days.
    sums = np.bincount(keys, weights=lengths, minlength=size).astype(np.int64)
    return Sums(np.bincount(keys, minlength=size), sums, longest)


class BlockSums:
    """The blocks of all rows."""

    def __init__(self, rows: Rows, kind: Values, kinds: int) -> None:
        """Sum the blocks.

        Args:
            kind: of each position of the rows: int[n], below `kinds`.
        """
        self._rows, self._kind, self.kinds, self._block = rows, kind, max(kinds, 1), BLOCK
        of_row = -(-np.diff(rows.first) // self._block)
        self._first_block = np.concatenate(([0], np.cumsum(of_row)))
        within = np.arange(int(self._first_block[-1])) - np.repeat(self._first_block[:-1], of_row)
        self._begin = np.append(np.repeat(rows.first[:-1], of_row) + within * self._block, rows.first[-1])
        blocks = len(self._begin) - 1
        step = max(min(_CELLS // self.kinds, _CELLS // self._block), 1)
        parts = [self._sum_blocks(low, min(low + step, blocks)) for low in range(0, blocks, step)]
        none = np.empty(0, dtype=np.int64)
        cell, counts, sums, longest = (
            (np.concatenate(column) for column in zip(*parts, strict=True)) if parts else (none,) * 4
        )
        self._first_cell = np.searchsorted(cell // self.kinds, np.arange(blocks + 1))
        self._cell_kind = (cell % self.kinds).astype(np.int32)
        self._counts, self._sums, self._longest = counts.astype(np.int32), sums, longest

    def _sum_blocks(self, low: int, high: int) -> tuple[np.ndarray, ...]:
        """Cell (block and kind), count, sum and longest of what occurs in some blocks."""
        begin = self._begin[low : high + 1]
        inside = slice(int(begin[0]), int(begin[-1]))
        block = np.repeat(np.arange(high - low), np.diff(begin))
        _, starts, ends, _ = self._rows.stretch(inside.start, inside.stop)
        lengths = np.maximum(ends - starts, 0)
        found = sum_up(block * self.kinds + self._kind[inside], lengths, (high - low) * self.kinds)
        cells = np.flatnonzero(found.counts)
        return cells + low * self.kinds, found.counts[cells], found.sums_ns[cells], found.longest_ns[cells]

    def total(self, stretches: Stretches, keys: Keys, low_ns: int, high_ns: int) -> Sums:
        """What lies between two times of some stretches, which reach just there."""
        begin_of_row, block_of_row = self._rows.first[stretches.row], self._first_block[stretches.row]
        # The first and the last span may be cut: no block holds them.
        low = block_of_row + -(-(stretches.first + 1 - begin_of_row) // self._block)
        high = block_of_row + (stretches.last - 1 - begin_of_row) // self._block
        whole = high > low
        high = np.where(whole, high, low)
        cells = _spread(self._first_cell[low[whole]], self._first_cell[high[whole]])
        sizes = self._first_cell[high[whole]] - self._first_cell[low[whole]]
        key_of_cell = np.repeat(keys.of_row[stretches.row[whole]], sizes) + keys.of_kind[self._cell_kind[cells]]
        before = Stretches(
            stretches.row, stretches.first, np.where(whole, self._begin[np.where(whole, low, 0)], stretches.last)
        )
        after = Stretches(stretches.row[whole], self._begin[high[whole]], stretches.last[whole])
        parts = [
            self.one_by_one(before, keys, low_ns, high_ns),
            self.one_by_one(after, keys, low_ns, high_ns),
        ]
        longest = np.maximum(parts[0].longest_ns, parts[1].longest_ns)
        np.maximum.at(longest, key_of_cell, self._longest[cells])
        counts = np.bincount(key_of_cell, weights=self._counts[cells], minlength=keys.size).astype(np.int64)
        sums = np.bincount(key_of_cell, weights=self._sums[cells], minlength=keys.size).astype(np.int64)
        return Sums(counts + parts[0].counts + parts[1].counts, sums + parts[0].sums_ns + parts[1].sums_ns, longest)

    def one_by_one(self, stretches: Stretches, keys: Keys, low_ns: int, high_ns: int) -> Sums:
        """The same by looking at each span."""
        return sum_up(self.keys(stretches, keys), self.lengths(stretches, low_ns, high_ns), keys.size)

    def keys(self, stretches: Stretches, keys: Keys) -> np.ndarray:
        """The key of each position."""
        found: np.ndarray = keys.of_row[stretches.rows()] + keys.of_kind[self._kind[stretches.positions()]]
        return found

    def lengths(self, stretches: Stretches, low_ns: int, high_ns: int) -> np.ndarray:
        """How much of each position lies between two times, ns."""
        positions = stretches.positions()
        ends, starts = (
            np.minimum(self._rows.end_ns[positions], high_ns),
            np.maximum(self._rows.start_ns[positions], low_ns),
        )
        lengths: np.ndarray = np.maximum(ends - starts, 0)
        return lengths


def _spread(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The numbers of several ranges, one range after the other."""
    sizes = last - first
    return (
        np.arange(int(sizes.sum())) + np.repeat(first - np.concatenate(([0], np.cumsum(sizes)[:-1])), sizes)
        if len(sizes)
        else np.empty(0, np.int64)
    )
