"""Arithmetic of sets of moments: union, intersection, difference, and how much of a set falls into windows.

A set is an int64[n, 2] array of rows [start_ns, end_ns), sorted and disjoint ("normal form").  All functions take and return
normal form and run in n log n without a Python loop.
"""

import numpy as np
import pandas as pd

from .arrays import Integers, IntMatrix, Mask

Intervals = IntMatrix
Times = Integers

EMPTY: Intervals = np.empty((0, 2), dtype=np.int64)


def normalise(starts: Times, ends: Times) -> Intervals:
    """The set covered by any spans, in normal form.

    Args:
        starts: int64[n], any order.
        ends: int64[n], `ends >= starts`.

    >>> normalise(np.array([5, 0, 2]), np.array([9, 3, 4])).tolist()
    [[0, 4], [5, 9]]
    """
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    if not len(starts):
        return EMPTY
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    # A new interval begins where a span starts after everything before it has ended.
    first = np.concatenate(([True], starts[1:] > ends[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.stack((starts[first], ends[last]), axis=1)


def of_spans(spans: pd.DataFrame) -> Intervals:
    """The moments covered by rows with `start_ns` and `dur_ns`."""
    starts = spans["start_ns"].to_numpy(dtype=np.int64)
    return normalise(starts, starts + spans["dur_ns"].to_numpy(dtype=np.int64))


def union(*sets: Intervals) -> Intervals:
    """Moments in any of the sets."""
    joined = np.concatenate(sets) if sets else EMPTY
    return normalise(joined[:, 0], joined[:, 1])


def _sweep(left: Intervals, right: Intervals) -> tuple[Times, Times, Times]:
    """All edges in order, and after each how many intervals of either set are open."""
    edges = np.concatenate((left[:, 0], left[:, 1], right[:, 0], right[:, 1]))
    in_left = np.repeat([1, -1, 0, 0], [len(left), len(left), len(right), len(right)])
    in_right = np.repeat([0, 0, 1, -1], [len(left), len(left), len(right), len(right)])
    order = np.argsort(edges, kind="stable")
    return edges[order], np.cumsum(in_left[order]), np.cumsum(in_right[order])


def _where(edges: Times, wanted: Mask) -> Intervals:
    """The stretches between edges for which `wanted` holds."""
    return normalise(edges[:-1][wanted[:-1]], edges[1:][wanted[:-1]])


def intersect(left: Intervals, right: Intervals) -> Intervals:
    """Moments in both sets."""
    edges, in_left, in_right = _sweep(left, right)
    return _where(edges, (in_left > 0) & (in_right > 0))


def subtract(left: Intervals, right: Intervals) -> Intervals:
    """Moments in `left` and not in `right`."""
    edges, in_left, in_right = _sweep(left, right)
    return _where(edges, (in_left > 0) & (in_right == 0))


def total(moments: Intervals) -> int:
    """Length of a set, in ns."""
    return int((moments[:, 1] - moments[:, 0]).sum())


def total_within(moments: Intervals, starts: Times, ends: Times) -> Times:
    """How much of `moments` falls into each window [starts[i], ends[i]).

    Returns:
        int64[n], ns.
    """
    if not len(moments):
        return np.zeros(len(starts), dtype=np.int64)
    before = np.concatenate(([0], np.cumsum(moments[:, 1] - moments[:, 0])))

    def covered_until(at: Times) -> Times:
        index = np.searchsorted(moments[:, 0], at, side="right")
        inside = np.minimum(at, moments[np.maximum(index - 1, 0), 1]) - moments[np.maximum(index - 1, 0), 0]
        return np.where(index > 0, before[np.maximum(index - 1, 0)] + inside, 0)

    covered: Times = covered_until(ends) - covered_until(starts)
    return covered
