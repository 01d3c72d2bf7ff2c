"""Every nanosecond of a step is blamed once, on who made it necessary."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tests.traces import MS
from tlkit.collector.analysis import measure
from tlkit.collector.facts import Facts
from tlkit.collector.model.blame import (
    COLUMNS,
    MOVES_BYTES,
    NO_BATCH,
    OWN_WORK,
    QUEUED,
    blame_of_parts,
    find_blame,
    summarise_blame,
)
from tlkit.collector.model.parts_graph import ORDER, frontier
from tlkit.collector.model.steps import find_steps
from tlkit.timeline.model.trace import Clock, Trace

from .runs import Plan, even, load, plans, record, straggling


def facts_of(trace: Trace, warm_up: int = 1) -> Facts:
    return measure(trace, find_steps(trace, warm_up=warm_up))


def blame_of(trace: Trace) -> pd.DataFrame:
    graph = facts_of(trace).graph
    assert graph is not None
    return find_blame(graph)


def shifted(trace: Trace, by_ns: list[int]) -> Trace:
    """Every rank's clock shows something else, and nobody knows what."""

    def move(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
        shift = np.array(by_ns)[table["rank"].to_numpy()]
        return table.assign(**{name: table[name] + shift for name in columns})

    return replace(
        trace,
        meta=replace(trace.meta, clock=Clock(method="none", uncertainty_ns=0)),
        spans=move(trace.spans, "start_ns"),
        steps=move(trace.steps, "start_ns", "end_ns"),
        collectives=move(trace.collectives, "submitted_ns", "negotiated_ns", "start_ns"),
    )


@given(plans(), st.sampled_from([0, 1]))
@settings(max_examples=examples(20))
def test_the_rows_of_a_step_sum_to_the_step(plan: Plan, warm_up: int) -> None:
    facts = facts_of(record(plan), warm_up)
    assert facts.graph is not None
    blame = find_blame(facts.graph)

    assert tuple(blame.columns) == COLUMNS
    assert (blame["ns"] > 0).all()
    by_step = blame.groupby("step")["ns"].sum()
    assert by_step.index.tolist() == facts.steps.numbers.tolist()
    assert by_step.tolist() == facts.steps.job_ns.tolist()


@pytest.mark.parametrize(("ranks", "slow"), [(2, 0), (3, 1), (4, 3)])
def test_a_straggler_is_to_blame_for_all_its_work(ranks: int, slow: int) -> None:
    """70 ms of forward and 60 of backward on the slow rank, then 1 ms of agreement and 5 of bytes."""
    blame = blame_of(record(straggling(even(ranks, 10), slow, 40 * MS)))
    own = blame[blame["why"] == OWN_WORK]
    of_step = own[own["step"] == 5].set_index(["rank", "category"])["ns"]

    assert of_step[slow, "forward"] == 70 * MS
    assert of_step[slow, "backward"] == 60 * MS
    assert not set(own[own["category"].isin(["forward", "backward"])]["rank"]) - {slow}
    assert set(blame[blame["why"] == MOVES_BYTES].groupby("step")["ns"].sum()) == {5 * MS}
    table = summarise_blame(blame, 9)
    assert (table["rank"][0], table["part"][0], table["steps_ratio"][0]) == (slow, "forward", 1.0)
    assert table["mean_ns"][0] == 70 * MS
    assert table["share"].sum() == pytest.approx(1)


def test_a_rank_that_is_slow_in_one_step_is_to_blame_in_that_one() -> None:
    plan = straggling(even(2, 10), 0, 5 * MS)
    plan.forward[1, 6] += 100 * MS
    own = (rows := blame_of(record(plan)))[(rows["why"] == OWN_WORK) & (rows["category"] == "forward")]

    assert own[own["step"] == 6][["rank", "ns"]].to_numpy().tolist() == [[1, 130 * MS]]
    assert set(own[own["step"] != 6]["rank"]) == {0}


def test_operations_that_wait_for_each_other_blame_the_queue() -> None:
    """Four collectives of 30 ms behind each other with 2 ms between them; three quarters of backward hide the beginning."""
    plan = replace(even(2, 10, 4, gap=2 * MS), run=np.full((10, 4), 30 * MS))
    blame = blame_of(record(plan))
    by_why = blame[blame["step"] == 5].groupby("why")["ns"].sum()

    # The first begins 1 ms after the first bucket: 30 + 15 + 1; four take 4 * 30 + 3 * 2, and backward ends at 90.
    assert by_why[OWN_WORK] + by_why[MOVES_BYTES] + by_why[QUEUED] + by_why.get("negotiates", 0) == 175 * MS
    waited = 46 + 126 - 90
    assert by_why[MOVES_BYTES] + by_why[QUEUED] == waited * MS
    assert by_why[QUEUED] == 2 * 2 * MS
    assert set(blame[blame["why"] == QUEUED]["category"]) == {"queue"}


def test_a_loader_that_is_too_slow_is_to_blame() -> None:
    """40 ms a batch beside 15 ms of compute."""
    blame = blame_of(load(30, compute=15 * MS, busy=40 * MS, workers=1))

    assert set(blame[blame["why"] == NO_BATCH].groupby("step")["ns"].sum()) == {25 * MS}
    assert set(blame[blame["why"] == NO_BATCH]["category"]) == {"data"}
    assert set(blame.groupby("step")["ns"].sum()) == {40 * MS}


@given(st.integers(1, 8), st.integers(1, 12), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(60))
def test_the_frontier_sums_to_the_longest_own_time(ranks: int, steps: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    parts = {part: random.integers(0, 100 * MS, (ranks, steps)) for part in ORDER}
    gains, who = frontier(parts)

    assert (gains >= 0).all()
    assert gains.sum(axis=0).tolist() == np.sum(list(parts.values()), axis=0).max(axis=0).tolist()
    done = np.zeros((ranks, steps))
    for position, part in enumerate(ORDER):
        done += parts[part]
        assert (done[who[position], np.arange(steps)] == done.max(axis=0)).all()


@pytest.mark.parametrize("part", ORDER)
def test_the_frontier_names_the_rank_and_part_of_a_delay(part: str) -> None:
    parts = {name: np.full((4, 6), 10 * MS) for name in ORDER}
    parts[part] = parts[part].copy()
    parts[part][2, 3] += 7 * MS
    gains, who = frontier(parts)

    assert gains[ORDER.index(part)].tolist() == [10 * MS] * 3 + [17 * MS] + [10 * MS] * 2
    assert who[ORDER.index(part), 3] == 2


def test_a_delay_that_another_rank_makes_up_for_is_nobodys() -> None:
    """Rank 0 is 10 ms late after forward, rank 1 after backward: the frontier moves by 10 ms once."""
    parts = {name: np.zeros((2, 1), dtype=np.int64) for name in ORDER}
    parts["forward"] = np.array([[20 * MS], [10 * MS]])
    parts["backward"] = np.array([[10 * MS], [20 * MS]])
    gains, _ = frontier(parts)

    assert [gains[ORDER.index(part), 0] for part in ("forward", "backward")] == [20 * MS, 10 * MS]


@given(st.data(), plans())
@settings(max_examples=examples(10))
def test_blame_of_parts_needs_no_common_clock(data: st.DataObject, plan: Plan) -> None:
    trace = record(plan)
    far = st.integers(0, 10**12)
    apart = shifted(trace, data.draw(st.lists(far, min_size=plan.ranks, max_size=plan.ranks)))
    facts, moved = facts_of(trace), facts_of(apart)
    assert moved.is_of_parts == (plan.ranks > 1)
    blame = blame_of_parts(facts.steps, facts.breakdown)

    pd.testing.assert_frame_equal(blame, blame_of_parts(moved.steps, moved.breakdown))
    own = blame[blame["why"] == OWN_WORK].groupby("step")["ns"].sum()
    work = facts.breakdown.own_work_ns
    assert own.tolist() == work.max(axis=0).tolist()
    longest = facts.breakdown.step_ns[work.argmax(axis=0), np.arange(facts.steps.count)]
    assert blame.groupby("step")["ns"].sum().tolist() == longest.tolist()


def test_without_a_common_clock_a_straggler_is_named_with_its_part() -> None:
    facts = facts_of(shifted(record(straggling(even(3, 10), 1, 40 * MS)), [0, 5 * MS, 10**10]))
    table = summarise_blame(blame_of_parts(facts.steps, facts.breakdown), facts.steps.count)

    assert (table["rank"][0], table["part"][0], table["mean_ns"][0]) == (1, "forward", 70 * MS)


def test_without_a_common_clock_the_replay_makes_the_straggler_quicker_all_the_same() -> None:
    facts = facts_of(shifted(record(straggling(even(3, 10), 1, 40 * MS)), [0, 5 * MS, 10**10]))
    less = np.zeros((3, 9))
    less[1] = 20 * MS

    assert facts.replay is not None
    assert facts.replay.error_ratio == pytest.approx(0, abs=1e-12)
    assert facts.outcome(facts.without("forward", less)).saved_ns.tolist() == pytest.approx([20 * MS] * 9)
