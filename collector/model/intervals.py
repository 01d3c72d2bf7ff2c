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


def of_spans(spans: pd.DataFrame, chosen: Mask | None = None) -> Intervals:
    """The moments covered by rows with `start_ns` and `dur_ns`.

    Args:
        chosen: these rows only; None for all.
    """
    starts, took = spans["start_ns"].to_numpy(dtype=np.int64), spans["dur_ns"].to_numpy(dtype=np.int64)
    if chosen is not None:
        starts, took = starts[chosen], took[chosen]
    return normalise(starts, starts + took)


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


def _is_normal(moments: Intervals) -> bool:
    """Whether a set is in normal form."""
    starts, ends = moments[:, 0], moments[:, 1]
    return bool((ends > starts).all() and (starts[1:] > ends[:-1]).all())


def _pieces(starts: Times, ends: Times, first: Integers, count: Integers, within: Intervals) -> Intervals:
    """Of each stretch of `within` its parts in the stretches [starts[first], ends[first]), and so many that follow."""
    count = np.maximum(count, 0)
    owner = np.repeat(np.arange(len(within)), count)
    at = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count) + first[owner]
    return np.stack((np.maximum(starts[at], within[owner, 0]), np.minimum(ends[at], within[owner, 1])), axis=1)


def intersect(left: Intervals, right: Intervals) -> Intervals:
    """Moments in both sets."""
    if _is_normal(left) and _is_normal(right):
        if len(left) > len(right):
            left, right = right, left
        # Of the longer set only what reaches into the shorter one is looked at.
        first = np.searchsorted(right[:, 1], left[:, 0], side="right")
        last = np.searchsorted(right[:, 0], left[:, 1], side="left")
        return _pieces(right[:, 0], right[:, 1], first, last - first, left)
    edges, in_left, in_right = _sweep(left, right)
    return _where(edges, (in_left > 0) & (in_right > 0))


def subtract(left: Intervals, right: Intervals) -> Intervals:
    """Moments in `left` and not in `right`."""
    if _is_normal(left) and _is_normal(right):
        if not len(right):
            return left
        first = np.searchsorted(right[:, 1], left[:, 0], side="right")
        last = np.searchsorted(right[:, 0], left[:, 1], side="left")
        # The time before, between and after those of `right` that reach into a stretch; none of it where one covers the edge.
        limit = np.iinfo(np.int64)
        starts, ends = np.append(limit.min, right[:, 1]), np.append(right[:, 0], limit.max)
        found = _pieces(starts, ends, first, last - first + 1, left)
        return found[found[:, 1] > found[:, 0]]
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
    begun, ended = np.ascontiguousarray(moments[:, 0]), np.ascontiguousarray(moments[:, 1])
    # What was covered before each, less where it begins.
    before = np.concatenate(([0], np.cumsum(ended - begun)))[:-1] - begun

    def covered_until(at: Times) -> Times:
        last = np.searchsorted(begun, at, side="right") - 1
        row = np.maximum(last, 0)
        return np.where(last >= 0, np.minimum(at, ended[row]) + before[row], 0)

    covered: Times = covered_until(ends) - covered_until(starts)
    return covered
