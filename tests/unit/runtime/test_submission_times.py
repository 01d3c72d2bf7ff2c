"""When tensors were submitted, from a rank's message to the arrivals of a collective."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlkit.runtime.core.control.messages import to_ranges, to_runs
from tlkit.runtime.core.control.submission_times import SubmissionTimes, times_of

TIMES = st.lists(st.integers(0, 3), min_size=1, max_size=20)


@given(TIMES, st.integers(-5, 5))
def test_runs_say_each_time(times_ns: list[int], offset_ns: int) -> None:
    """Whether they are one run or many, each tensor's time comes out, on the other clock."""
    told = times_of(to_runs(times_ns), offset_ns, len(times_ns))

    assert told == [at_ns + offset_ns for at_ns in times_ns]


def test_a_bucket_is_one_run() -> None:
    """However many gradients it has."""
    assert to_runs([7] * 400) == [400, 7]


@pytest.mark.parametrize("runs", [[3, 7], [1, 7, 4, 8], [2, 7, 9], [10**15, 7]])
def test_times_of_other_tensors_are_refused(runs: list[int]) -> None:
    """A message says as many times as it asks for tensors: no rank makes the coordinator fill its memory."""
    with pytest.raises(ValueError, match="asks for 2"):
        times_of(runs, 0, 2)


def test_the_last_of_each_rank_counts() -> None:
    """A rank has arrived when it has submitted all tensors of a collective, which need not be neighbours."""
    times = SubmissionTimes(2)
    times.note(0, [10, 3], 10, [5, 9, 7], 3)
    times.note(1, [10, 3], 10, [6] * 3, 3)

    assert times.last([10, 3], 10) == [9, 6]
    assert times.last(to_ranges([10, 12]), 10) == [7, 6]
    assert times.of(1) == (9, 6)


def test_a_rank_that_does_not_say_is_no_arrival() -> None:
    """It has begun its timeline later: of the others alone nobody can tell who came last."""
    times = SubmissionTimes(2)
    times.note(0, [0, 2], 0, [5, 5], 2)
    assert times.last([0, 2], 0) == []
    times.note(1, [0, 2], 0, [6, 6], 2)
    assert times.last([0, 2], 0) == [5, 6]
    times.note(1, [1, 1], 0, None, 2)

    assert times.last([0, 2], 0) == []
    assert times.of(1) == (5, 0)


def test_times_stay_with_their_tensors() -> None:
    """When the oldest ids are gone, and when there are more than there was room for."""
    times = SubmissionTimes(1)
    times.note(0, [0, 2], 0, [5, 6], 2)
    times.drop_lowest(1)
    times.note(0, [500, 1], 1, [9], 500)

    assert times.last([1, 1], 1) == [6]
    assert times.last([1, 1, 500, 1], 1) == [9]


def test_without_a_timeline_nothing_is_told() -> None:
    """Nobody has said a time."""
    assert SubmissionTimes(2).last([0, 3], 0) == []
    assert times_of([], 0, 3) is None
