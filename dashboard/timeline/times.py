"""Starts and ends of the spans in rows, gathered from the trace's columns when somebody asks.

Copies of both in the order of the rows would be sixteen bytes a span, half as much as the trace itself; the place of each span in
the trace is four.
"""

from typing import Any, Protocol

import numpy as np


class Values(Protocol):
    """What can be indexed as an array is: by a position, a slice without step, or an array of positions."""

    def __getitem__(self, at: Any, /) -> Any: ...

    def __len__(self) -> int: ...


class Starts:
    """When the span at each position begins, ns."""

    def __init__(self, start_ns: np.ndarray, span: np.ndarray) -> None:
        """Keep columns.

        Args:
            start_ns: int64[span] of the trace.
            span: int32[n], the span at each position.
        """
        self._start_ns, self._span = start_ns, span

    def __len__(self) -> int:
        return len(self._span)

    def __getitem__(self, at: Any) -> Any:
        return self._start_ns[self._span[at]]

    def of(self, spans: np.ndarray) -> np.ndarray:
        """The starts of spans that are known already."""
        return self._start_ns.take(spans)


class Ends:
    """When the span at each position ends, ns; but not before one that stands in front of it in its row."""

    def __init__(
        self, start_ns: np.ndarray, dur_ns: np.ndarray, span: np.ndarray, odd: np.ndarray, odd_ns: np.ndarray
    ) -> None:
        """Keep columns.

        Args:
            odd: positions, ascending, of spans that end earlier than one in front of them in their row: few.
            odd_ns: when that one ends.
        """
        self._start_ns, self._dur_ns, self._span = start_ns, dur_ns, span
        self._odd, self._odd_ns = odd, odd_ns

    def __len__(self) -> int:
        return len(self._span)

    def __getitem__(self, at: Any) -> Any:
        spans = self._span[at]
        return self.after(self._start_ns[spans], spans, at)

    def after(self, starts: Any, spans: Any, at: Any) -> Any:
        """The ends at positions of which the starts and the spans are known already."""
        ends = starts + self._dur_ns.take(spans)
        if not len(self._odd):
            return ends
        if isinstance(at, slice):
            begin, end, _ = at.indices(len(self))
            low, high = np.searchsorted(self._odd, (begin, end))
            ends[self._odd[low:high] - begin] = self._odd_ns[low:high]
            return ends
        place = np.minimum(np.searchsorted(self._odd, at), len(self._odd) - 1)
        return np.where(self._odd[place] == at, self._odd_ns[place], ends)


class Codes:
    """A number for the span at each position, by the number of its category, and perhaps of its name."""

    def __init__(self, code_of: np.ndarray, category: np.ndarray, span: np.ndarray) -> None:
        """Keep columns.

        Args:
            code_of: the number for each category.
            category: int8[span] of the trace.
            span: int32[n], the span at each position.
        """
        self._code_of, self._category, self._span = code_of, category, span

    def __len__(self) -> int:
        return len(self._span)

    def __getitem__(self, at: Any) -> Any:
        return self._code_of[self._category[self._span[at]]]

    def of(self, spans: np.ndarray) -> np.ndarray:
        """The numbers of spans that are known already."""
        return self._code_of.take(self._category.take(spans))

    def used(self) -> list[int]:
        """The numbers that occur, of all spans of the trace."""
        # Comparing bytes takes a tenth of the time of counting them.
        occurs = [number for number in range(len(self._code_of)) if (self._category == number).any()]
        return sorted(set(self._code_of[occurs].tolist()))

    def beside(self, pair_of: np.ndarray, name: np.ndarray, names: int) -> "Pairs":
        """The same for pairs of this number and that of the name.

        Args:
            pair_of: the number of each pair, that of the name counting least.
            name: int[span] of the trace, below `names`.
        """
        return Pairs(pair_of.reshape(-1, names)[self._code_of], self._category, name, self._span)


class Pairs:
    """A number for the span at each position, by category and name."""

    def __init__(self, pair_of: np.ndarray, category: np.ndarray, name: np.ndarray, span: np.ndarray) -> None:
        """Keep columns.

        Args:
            pair_of: int[category, name].
        """
        self._pair_of, self._category, self._name, self._span = pair_of, category, name, span

    def __len__(self) -> int:
        return len(self._span)

    def __getitem__(self, at: Any) -> Any:
        spans = self._span[at]
        return self._pair_of[self._category[spans], self._name[spans]]


def search(values: Values, begin: np.ndarray, end: np.ndarray, bound: np.ndarray | int, *, right: bool) -> np.ndarray:
    """In each of several ranges of positions the first one that does not lie before a bound.

    Args:
        values: ascending within each range.
        begin: int64[k], first position of each range.
        end: int64[k], the one after its last.
        bound: one for all, or one for each.
        right: values equal to the bound lie before it.

    Returns:
        int64[k]; `end` where all lie before it.
    """
    low, high = begin.astype(np.int64), end.astype(np.int64)
    bounds = np.broadcast_to(np.asarray(bound, dtype=np.int64), low.shape)
    while len(left := np.flatnonzero(low < high)):
        middle = (low[left] + high[left]) // 2
        is_before = values[middle] <= bounds[left] if right else values[middle] < bounds[left]
        low[left] = np.where(is_before, middle + 1, low[left])
        high[left] = np.where(is_before, high[left], middle)
    return low
