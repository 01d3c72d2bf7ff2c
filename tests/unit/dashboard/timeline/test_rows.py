"""Waits in the colour of what is waited for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tests.traces import make_trace
from tlkit.collector import analyze
from tlkit.dashboard.timeline.rows import CATEGORIES, make_rows
from tlkit.timeline.vocabulary import SYNCHRONIZE, LaneKind

from .runs import MS, run_of, slow_rank

parts = st.lists(
    st.tuples(
        st.sampled_from(["forward", "backward", "wait", "wait:negotiate", "wait:collective", "wait:queue", "host"]),
        st.integers(1, 30).map(float),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=examples(15))
@given(st.lists(parts, min_size=3, max_size=5))
def test_the_pieces_of_waits_are_what_the_breakdown_counts(steps: list[list[tuple[str, float]]]) -> None:
    """They tile each wait, and their sums by category are the exposed parts of all steps, without remainder."""
    trace = make_trace([steps])
    analysis = analyze(trace, warm_up=0)
    rows = make_rows(trace, analysis.facts.breakdown)
    waits = np.flatnonzero((trace.spans["name"] == SYNCHRONIZE).to_numpy())
    found = dict.fromkeys(CATEGORIES, 0)
    for number in waits.tolist():
        mine = np.flatnonzero(rows.span == number)
        start, end = rows.start_ns[mine], rows.end_ns[mine]
        assert start[0] == trace.spans["start_ns"].iloc[number]
        assert end[-1] == start[0] + trace.spans["dur_ns"].iloc[number]
        assert (start[1:] == end[:-1]).all()
        for category, length in zip(rows.category[mine].tolist(), (end - start).tolist(), strict=True):
            found[CATEGORIES[category]] += length
    expected = analysis.facts.breakdown.parts_ns
    for part in ("negotiate", "queue", "collective", "idle"):
        assert found[part] == int(expected[part].sum())


def test_rows_stand_by_rank_with_tensors_below_what_ranks_are_compared_by() -> None:
    """A rank's rows are together, and its lane of compute can be found."""
    rows = run_of(slow_rank()).rows

    assert list(rows.ranks) == sorted(rows.ranks)
    row = rows.row_of(1, LaneKind.COMPUTE)
    assert rows.ranks[row] == 1
    assert rows.lanes[rows.lane[row]] == "compute"
    assert rows.row_of(7, LaneKind.COMPUTE) == -1


def test_a_wait_in_pieces_is_found_as_one_span() -> None:
    """The binary search sees its pieces, which name the span that they are of."""
    rows = run_of(slow_rank()).rows
    row = rows.row_of(0, LaneKind.COMPUTE)
    first, last = rows.within(row, 32 * MS, 66 * MS)

    assert [CATEGORIES[code] for code in rows.category[first:last]] == ["negotiate", "collective"]
    assert rows.start_ns[first] == pytest.approx(32 * MS)
