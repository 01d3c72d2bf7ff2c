"""What the timeline page draws, against brute force."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tests.traces import make_trace
from tlkit.dashboard.timeline.lod import SHADES, view
from tlkit.dashboard.timeline.rows import CATEGORIES, MAX_DEPTH, make_rows
from tlkit.timeline.model.trace import SPAN_COLUMNS, Trace, make_table

spans = st.lists(
    st.tuples(
        st.integers(0, 2),  # rank
        st.sampled_from(["compute", "communication"]),
        st.sampled_from(["forward", "collective", "data"]),
        st.integers(0, 1000),
        st.integers(0, 200),
    ),
    max_size=60,
)


def trace_of(described: list[tuple[int, str, str, int, int]]) -> Trace:
    rows = [(rank, lane, lane, category, "x", start, dur, -1) for rank, lane, category, start, dur in described]
    columns = {name: [row[number] for row in rows] for number, name in enumerate(SPAN_COLUMNS)}
    empty = make_trace([[], [], []])
    return Trace(
        meta=empty.meta, spans=make_table(SPAN_COLUMNS, columns), collectives=empty.collectives, tensors=empty.tensors,
        arrivals=empty.arrivals, steps=empty.steps, counters=empty.counters,
    )  # fmt: skip


@given(spans)
def test_every_span_has_one_row_of_its_lane(described: list[tuple[int, str, str, int, int]]) -> None:
    """In order of rank and lane, tensors last; spans that nest lie below each other, and rows hold no two that nest."""
    trace = trace_of(described)
    rows = make_rows(trace)

    assert sorted(rows.span.tolist()) == list(range(len(described)))
    assert list(rows.ranks) == sorted(rows.ranks)
    for row in range(len(rows)):
        members = rows.span[rows.first[row] : rows.first[row + 1]]
        table = trace.spans.iloc[members]
        assert len(set(zip(table["rank"], table["lane"].astype(str), strict=True))) == 1
        assert (np.diff(table["start_ns"].to_numpy()) >= 0).all()
        assert {rows.row_of_span(number) for number in members.tolist()} == {row}
    for index, (rank, lane, _, start, dur) in enumerate(described):
        around = sum(
            1
            for other, (r, ln, _, s, d) in enumerate(described)
            if other != index and (r, ln) == (rank, lane) and (s < start or (s == start and d >= dur)) and s + d > start
        )
        if around < MAX_DEPTH:
            first = next(k for k in range(len(rows)) if rows.ranks[k] == rank and rows.lanes[rows.lane[k]] == lane)
            assert rows.row_of_span(index) - first <= around


@settings(max_examples=examples(200))
@given(spans, st.integers(0, 900), st.integers(1, 600), st.sampled_from([1, 3, 40, 160]))
def test_what_is_drawn_is_what_is_there(
    described: list[tuple[int, str, str, int, int]], low: int, length: int, columns: int
) -> None:
    """In every column: something is drawn where a span of the row is, nothing where none is."""
    trace = trace_of(described)
    rows = make_rows(trace)
    drawn = view(rows, low, low + length, range(len(rows)), columns)
    scale = columns / length
    for row in range(len(rows)):
        members = rows.span[rows.first[row] : rows.first[row + 1]]
        mine = drawn.row == row
        for column in range(columns):
            from_ns, to_ns = low + column / scale, low + (column + 1) / scale
            there = [
                described[k]
                for k in members
                if described[k][3] < to_ns - 1e-6 and described[k][3] + described[k][4] > from_ns + 1e-6
            ]
            shown = mine & (drawn.left < column + 1 - 1e-3) & (drawn.right > column + 1e-3)
            if there:
                assert shown.any(), (row, column)
                wanted = {CATEGORIES.index(span[2]) for span in there}
                assert wanted & set(drawn.category[shown].tolist())
            elif not any(low + column / scale <= described[k][3] <= low + (column + 1) / scale for k in members):
                assert not shown.any(), (row, column)
    assert ((drawn.shade >= 1) & (drawn.shade <= SHADES)).all()


def test_a_full_row_costs_what_the_screen_has_and_says_how_full_it_is() -> None:
    """A hundred thousand spans of half the time become a few rectangles of half a shade."""
    described = [(0, "compute", "forward", 10 * k, 5) for k in range(100_000)]
    rows = make_rows(trace_of(described))
    drawn = view(rows, 0, 1_000_000, [0], 800)

    assert len(drawn) <= 800
    assert set(drawn.shade.tolist()) <= {SHADES // 2, SHADES // 2 + 1}
    assert (drawn.span == -1).all()
    near = view(rows, 500, 600, [0], 800)
    assert [described[k][3] for k in near.span] == list(range(500, 600, 10))


def test_the_bytes_are_what_the_page_reads() -> None:
    """A count, then six columns of four bytes."""
    drawn = view(make_rows(trace_of([(0, "compute", "forward", 0, 5)])), 0, 10, [0], 100)
    data = drawn.to_bytes()

    assert len(data) == 4 + 6 * 4
    assert np.frombuffer(data[4:8], "<i4")[0] == 0
    assert np.frombuffer(data[8:16], "<f4").tolist() == [0.0, 50.0]
