"""What a region says, against sums made by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tlkit.dashboard.timeline.region import GROUPINGS, Region, summarise
from tlkit.dashboard.timeline.run import Run
from tlkit.timeline.errors import UsageError

from .runs import MS, STEP_MS, STEPS, run_of, slow_rank

RUN = run_of(slow_rank())


def in_blocks() -> Run:
    """The same in blocks of three spans, so that there are several in a row."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tlkit.dashboard.timeline.block_sums.BLOCK", 3)
        run = run_of(slow_rank())
        assert run.block_sums.kinds > 1
    return run


IN_BLOCKS = in_blocks()


def test_one_step_of_both_ranks() -> None:
    """Time by category is what the ranks did; spans are counted, summed and the longest found."""
    found = summarise(RUN, Region(2 * STEP_MS * MS, 3 * STEP_MS * MS), "name")
    categories = {row["category"]: row["ns"] / MS for row in found["categories"]}

    assert categories["forward"] == 50
    assert categories["negotiate"] == 30
    assert categories["collective"] == 10
    assert sum(categories.values()) == 2 * STEP_MS
    groups = {row["name"]: row for row in found["groups"]}
    assert groups["FORWARD"]["count"] == 2
    assert groups["FORWARD"]["sum_ns"] == 50 * MS
    assert groups["FORWARD"]["mean_ns"] == 25 * MS
    assert groups["FORWARD"]["longest_ns"] == 40 * MS
    assert groups["NEGOTIATE"]["exposed_ns"] == 30 * MS
    assert found["communication"] == {"exposed_ns": 10 * MS, "hidden_ns": 0, "waiting_ns": 40 * MS}


def test_rows_limit_it_and_it_is_grouped_by_rank() -> None:
    """With the rows of one rank only that rank is summed."""
    rows = tuple(row for row in range(len(RUN.rows)) if RUN.rows.ranks[row] == 1)
    found = summarise(RUN, Region(0, STEPS * STEP_MS * MS, rows), "rank")

    assert found["ranks"] == 1
    assert {row["name"] for row in found["groups"]} == {"rank 1"}
    by_category = {row["category"]: row["sum_ns"] for row in found["groups"]}
    assert by_category["forward"] == STEPS * 40 * MS


@settings(max_examples=examples(40))
@given(st.integers(0, STEPS * STEP_MS), st.integers(1, 300))
def test_categories_sum_to_the_region(low: int, length: int) -> None:
    """Whatever is selected: nothing is lost, nothing twice, and no span counts for more than lies in the region."""
    found = summarise(RUN, Region(low * MS, (low + length) * MS), "name")

    assert sum(row["ns"] for row in found["categories"]) == 2 * length * MS
    spans = RUN.trace.spans
    for row in found["groups"]:
        mine = spans[spans["name"] == row["name"]]
        starts, ends = mine["start_ns"], mine["start_ns"] + mine["dur_ns"]
        inside = (ends.clip(upper=(low + length) * MS) - starts.clip(lower=low * MS)).clip(lower=0)
        if row["name"] != "SYNCHRONIZE":  # which has a row for each thing that it waits for
            assert row["sum_ns"] == int(inside.sum())
            assert row["longest_ns"] == int(inside.max())
        assert row["sum_ns"] <= int(inside.sum())


@settings(max_examples=examples(40))
@given(st.integers(0, STEPS * STEP_MS * MS), st.integers(1, 300 * MS), st.sampled_from(GROUPINGS), st.data())
def test_blocks_say_what_the_spans_say(low: int, length: int, grouping: str, data: st.DataObject) -> None:
    """Of many spans the sums are made of blocks: the same, wherever the region cuts, on whichever rows."""
    rows = data.draw(st.none() | st.lists(st.integers(0, len(IN_BLOCKS.rows) - 1), unique=True).map(tuple))
    region = Region(low, low + length, rows)
    one_by_one = summarise(IN_BLOCKS, region, grouping)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tlkit.dashboard.timeline.region.MAX_EXPOSED", -1)
        of_blocks = summarise(IN_BLOCKS, region, grouping)

    assert of_blocks == {**one_by_one, "groups": [{**row, "exposed_ns": None} for row in one_by_one["groups"]]}


def test_what_makes_no_sense_is_refused() -> None:
    """Nothing selected, nothing to group by."""
    with pytest.raises(UsageError, match="ends after"):
        summarise(RUN, Region(5, 5), "name")
    with pytest.raises(UsageError, match="by has to be"):
        summarise(RUN, Region(0, 5), "colour")
