"""The algebra of moments, against sets of single nanoseconds."""

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from tlkit.collector.model.intervals import intersect, normalise, of_spans, subtract, total, total_within, union

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)), max_size=12)


def built(described: list[tuple[int, int]]) -> np.ndarray:
    starts = np.array([start for start, _ in described], dtype=np.int64)
    return normalise(starts, starts + np.array([length for _, length in described], dtype=np.int64))


def moments(intervals: np.ndarray) -> set[int]:
    return {at for start, end in intervals.tolist() for at in range(start, end)}


@given(spans)
def test_normal_form_is_sorted_disjoint_and_complete(described: list[tuple[int, int]]) -> None:
    """It covers what the spans cover, and neighbours do not touch."""
    result = built(described)

    assert moments(result) == {at for start, length in described for at in range(start, start + length)}
    assert (result[:, 0] < result[:, 1]).all()
    assert (result[1:, 0] > result[:-1, 1]).all()


@given(spans, spans)
def test_operations_are_those_of_sets(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    """Union, intersection and difference of the moments."""
    a, b = built(left), built(right)

    assert moments(union(a, b)) == moments(a) | moments(b)
    assert moments(intersect(a, b)) == moments(a) & moments(b)
    assert moments(subtract(a, b)) == moments(a) - moments(b)
    assert total(intersect(a, b)) + total(subtract(a, b)) == total(a)


@given(spans, st.lists(st.tuples(st.integers(-5, 80), st.integers(0, 40)), min_size=1, max_size=5))
def test_time_within_windows_counts_moments(described: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    """For any windows, overlapping ones too."""
    intervals = built(described)
    starts = np.array([start for start, _ in windows])
    ends = starts + np.array([length for _, length in windows])

    assert total_within(intervals, starts, ends).tolist() == [
        len(moments(intervals) & set(range(start, end))) for start, end in zip(starts, ends, strict=True)
    ]


@given(spans, spans)
def test_sets_that_are_not_in_normal_form_are_sets_all_the_same(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    """Empty stretches and such that touch or overlap cover what they cover, and the result is in normal form."""
    a, b = (
        np.array([(at, at + length) for at, length in sorted(each)], dtype=np.int64).reshape(-1, 2)
        for each in (left, right)
    )
    for found, expected in (
        (intersect(a, b), moments(a) & moments(b)),
        (subtract(a, b), moments(a) - moments(b)),
    ):
        assert moments(found) == expected
        assert (found[:, 0] < found[:, 1]).all()
        assert (found[1:, 0] > found[:-1, 1]).all()


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15), st.booleans()), max_size=12))
def test_of_some_rows_only_these_count(described: list[tuple[int, int, bool]]) -> None:
    """As if the table had no others."""
    table = pd.DataFrame(described, columns=["start_ns", "dur_ns", "chosen"]).astype({"start_ns": int, "dur_ns": int})
    chosen = table["chosen"].to_numpy(dtype=bool)

    assert of_spans(table, chosen).tolist() == of_spans(table[chosen]).tolist()
