"""Waits in the colour of what is waited for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tests.traces import make_trace
from tlkit.collector import analyze
from tlkit.dashboard.timeline import rows as rows_module
from tlkit.dashboard.timeline.rows import CATEGORIES, make_rows
from tlkit.timeline.model.trace import SPAN_COLUMNS, make_table
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


@settings(max_examples=examples(25))
@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.sampled_from("ab"), st.integers(0, 30), st.integers(0, 12)),
        min_size=1,
        max_size=20,
    )
)
def test_lanes_of_many_spans_are_arranged_as_those_of_few(described: list[tuple[int, str, int, int]]) -> None:
    """By several threads or one, whatever the lanes are sorted by: those after one another, nested, and against the rules."""
    described = sorted(described, key=lambda span: span[0])
    rank, lane, start, took = map(list, zip(*described, strict=True))
    spans = make_table(
        SPAN_COLUMNS,
        {
            "rank": rank,
            "lane": lane,
            "lane_kind": ["compute"] * len(rank),
            "category": ["forward"] * len(rank),
            "name": ["x"] * len(rank),
            "start_ns": start,
            "dur_ns": took,
            "args_row": [-1] * len(rank),
        },
    )
    trace = replace(make_trace([[[("forward", 1.0)]]]), spans=spans)
    few = make_rows(trace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "_MANY", 0)
        patch.setattr(rows_module, "_FEW", 0)
        many = make_rows(trace)
    for name in ("lane", "kind", "depth", "ranks", "first", "span"):
        assert getattr(few, name).tolist() == getattr(many, name).tolist()
    assert few.start_ns[:].tolist() == many.start_ns[:].tolist()
    assert few.end_ns[:].tolist() == many.end_ns[:].tolist()
    for row in range(len(few)):
        mine = slice(int(few.first[row]), int(few.first[row + 1]))
        assert (np.diff(few.start_ns[mine]) >= 0).all()
        assert (np.diff(few.end_ns[mine]) >= 0).all()
    assert sorted(few.span.tolist()) == list(range(len(rank)))
    assert {CATEGORIES[number] for number in few.category.used()} == {"forward"}  # type: ignore[attr-defined]
