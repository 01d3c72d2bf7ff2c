"""Numbers of a Kineto trace that are looked up by place or by sorting, whichever is faster."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tlkit.timeline.formats.kineto_launches import _first_of
from tlkit.timeline.formats.kineto_tables import _numbered

numbers = st.one_of(st.integers(1, 20), st.integers(1, 10**18 - 1))


@given(st.lists(numbers, max_size=30), st.lists(st.one_of(numbers, st.integers(-3, 25)), max_size=30))
def test_the_first_of_several_calls_of_a_number_counts(calls: list[int], wanted: list[int]) -> None:
    """Near each other or far apart, and in any order."""
    found = _first_of(np.array(calls, np.int64), np.array(wanted, np.int64))

    assert found.tolist() == [calls.index(number) if number in calls else -1 for number in wanted]


@given(st.lists(st.integers(0, 40), max_size=30), st.sampled_from([41, 1000, 2**62]))
def test_values_are_numbered_in_order(values: list[int], count: int) -> None:
    """Of few different ones or of many."""
    unique, number = _numbered(np.array(values, np.int64), count)

    assert unique.tolist() == sorted(set(values))
    assert unique[number].tolist() == values
    assert number.dtype == np.int8  # as few bytes as hold them
