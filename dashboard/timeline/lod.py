"""Level of detail: what a screen can show of a stretch of time, and no more.

A row that has fewer spans than the screen has columns is sent as it is.  Of a fuller one each column says which category covers
most of it, and how much of it is covered at all; neighbours that say the same are joined.  Spans wider than a column are always
sent themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .rows import CATEGORIES, Rows

#: Shades between empty and full that a column may have.
SHADES: Final = 8
#: Rectangles of a view, whatever is asked for.
MAX_RECTANGLES: Final = 60_000
#: Columns of the widest screen.
MAX_COLUMNS: Final = 4096


@dataclass(frozen=True, slots=True)
class Rectangles:
    """What a view draws: one rectangle in each position of the arrays."""

    row: np.ndarray
    """int32: place among the rows asked for."""
    left: np.ndarray
    """float32, in columns."""
    right: np.ndarray
    category: np.ndarray
    """int32, of rows.CATEGORIES."""
    shade: np.ndarray
    """int32, 1 to SHADES."""
    span: np.ndarray
    """int32: number of the span; -1 for a column that sums several."""

    def __len__(self) -> int:
        return len(self.row)

    def to_bytes(self) -> bytes:
        """Little endian: the number of rectangles (uint32), then the columns, four bytes a value."""
        parts: list[Any] = [np.uint32(len(self)).tobytes()]
        for values, kind in (
            (self.row, "<i4"),
            (self.left, "<f4"),
            (self.right, "<f4"),
            (self.category, "<i4"),
            (self.shade, "<i4"),
            (self.span, "<i4"),
        ):
            parts.append(values.astype(kind).tobytes())
        return b"".join(parts)


def view(rows: Rows, low_ns: int, high_ns: int, shown: Sequence[int], columns: int) -> Rectangles:
    """What `columns` columns show of some rows between two times.

    Args:
        shown: the rows, from top to bottom.

    Raises:
        ValueError: there is no such stretch or screen.
    """
    if high_ns <= low_ns or not 1 <= columns <= MAX_COLUMNS:
        raise ValueError("a stretch of time and between 1 and 4096 columns are needed")
    parts = []
    left = MAX_RECTANGLES
    there = [(place, row) for place, row in enumerate(shown) if 0 <= row < len(rows)]
    bounds = rows.all_within(np.array([row for _, row in there], dtype=np.int64), low_ns, high_ns)
    for (place, _), first, last in zip(there, *(found.tolist() for found in bounds), strict=True):
        part = _row(rows, (first, last), low_ns, high_ns, columns)
        left -= len(part[0])
        if left < 0:
            break
        parts.append((np.full(len(part[0]), place, np.int32), *part))
    if not parts:
        empty = np.empty(0, np.int32)
        return Rectangles(empty, empty.astype(np.float32), empty.astype(np.float32), empty, empty, empty)
    return Rectangles(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _row(
    rows: Rows, bounds: tuple[int, int], low_ns: int, high_ns: int, columns: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    first, last = bounds
    scale = columns / (high_ns - low_ns)
    spans, starts, ends, codes = rows.stretch(first, last)
    left, right = (starts - low_ns) * scale, (ends - low_ns) * scale
    for edges in (left, right):
        np.clip(edges, 0, columns, out=edges)
    category, number = codes.astype(np.int32), spans.astype(np.int32)
    if last - first <= columns:
        shade = np.full(last - first, SHADES, np.int32)
        return left.astype(np.float32), right.astype(np.float32), category, shade, number
    wide = right - left >= 1
    # Most often none is wide: then nothing has to be copied apart.
    narrow = ~wide if wide.any() else slice(None)
    column_left, column_right, column_category, column_shade = _columns(
        left[narrow], right[narrow], category[narrow], columns
    )
    return (
        np.concatenate((column_left, left[wide])).astype(np.float32),
        np.concatenate((column_right, right[wide])).astype(np.float32),
        np.concatenate((column_category, category[wide])),
        np.concatenate((column_shade, np.full(int(wide.sum()), SHADES, np.int32))),
        np.concatenate((np.full(len(column_left), -1, np.int32), number[wide])),
    )


def _columns(
    left: np.ndarray, right: np.ndarray, category: np.ndarray, columns: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Spans narrower than a column, by column: (left, right, category, shade) of joined neighbours."""
    number = len(CATEGORIES)
    column = left.astype(np.intp)
    np.minimum(column, columns - 1, out=column)
    key = column * number + category
    # A span may reach into the next column: each gets its part.
    beyond = right - column
    beyond -= 1
    np.maximum(beyond, 0, out=beyond)
    length = right - left
    length -= beyond
    covered = np.bincount(key, weights=length, minlength=columns * number)
    over = np.flatnonzero(beyond)
    if len(over):
        after = np.minimum(column[over] + 1, columns - 1) * number + category[over]
        covered += np.bincount(after, weights=beyond[over], minlength=columns * number)
    # What lasts no time at all is seen nevertheless.
    seen = np.zeros(columns * number, dtype=bool)
    seen[key] = True
    covered = np.maximum(covered, seen * 1e-9).reshape(columns, number)
    best = covered.argmax(axis=1)
    full = covered.sum(axis=1)
    shade = np.where(full > 0, np.clip(np.ceil(full * SHADES), 1, SHADES), 0).astype(np.int32)
    value = np.where(shade > 0, best * (SHADES + 1) + shade, -1)
    starts = np.flatnonzero(np.concatenate(([True], value[1:] != value[:-1])))
    ends = np.append(starts[1:], columns)
    filled = shade[starts] > 0
    starts, ends = starts[filled], ends[filled]
    return starts.astype(float), ends.astype(float), best[starts].astype(np.int32), shade[starts]
