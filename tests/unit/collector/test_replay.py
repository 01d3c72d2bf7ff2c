"""The replay against arithmetic, and against a slow simulation that knows nothing of arrays."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tests.traces import MS, make_trace
from tlkit.collector.analysis import measure
from tlkit.collector.facts import Facts
from tlkit.collector.model.breakdown import PARTS
from tlkit.collector.model.steps import find_steps
from tlkit.collector.predict.change import Change, all_of
from tlkit.collector.predict.replay import Replay
from tlkit.timeline.model.trace import COLLECTIVE_COLUMNS, Trace, make_table

from .runs import Plan, ends_of, even, load, plans, record, straggling


def facts_of(trace: Trace, warm_up: int = 1) -> Facts:
    facts = measure(trace, find_steps(trace, warm_up=warm_up))
    assert facts.replay is not None
    return facts


def replay_of(trace: Trace, warm_up: int = 1) -> Replay:
    replay = facts_of(trace, warm_up).replay
    assert replay is not None
    return replay


def slowly(replay: Replay, change: Change) -> list[float]:
    """Steps of the job with a change: one moment after the other, each from those that it depends on."""
    graph, costs = replay.graph, replay.costs
    operations = graph.operations
    count, (ranks, steps) = len(operations), graph.steps.start_ns.shape
    factors = {part: np.broadcast_to(factor, (ranks, steps)) for part, factor in change.work.items()}
    latency, transfer, negotiation = (
        np.broadcast_to(value, count) for value in (change.latency, change.transfer, change.negotiation)
    )
    gone = [False] * count if change.gone is None else change.gone.tolist()
    wait_of = {int(segment): wait for wait, segment in enumerate(graph.wait_segment)}

    def own(first: int, last: int) -> float:
        total = 0.0
        for piece in range(first, last):
            rank, step = int(graph.piece_rank[piece]), int(graph.piece_step[piece])
            for part, ns in zip(PARTS, graph.piece_ns[piece].tolist(), strict=True):
                total += ns * (factors[part][rank, step] if part in factors and step >= 0 else 1.0)
        return total

    @cache
    def begin(segment: int) -> float:
        if segment == 0 or graph.segment_rank[segment - 1] != graph.segment_rank[segment]:
            return float(graph.segment_start_ns[segment])
        wait = wait_of[segment - 1]
        target = int(graph.wait_target[wait])
        ended = float("-inf") if gone[target] else end(target) + graph.wait_lag_ns[wait]
        asked = begin(segment - 1) + own(int(graph.segment_piece[segment - 1]), int(graph.segment_piece[segment]))
        return float(max(asked + graph.wait_hold_ns[wait], ended))

    @cache
    def end(operation: int) -> float:
        before = int(operations.before[operation])
        behind = end(before) if before >= 0 else float("-inf")
        if gone[operation]:
            return behind
        ready = max(
            begin(int(segment)) + own(int(graph.segment_piece[segment]), int(graph.arrival_piece[operation, row]))
            for row, segment in enumerate(graph.arrival_segment[operation])
            if segment >= 0
        )
        lead = replay._lead_ns[operation]
        lead -= (1 - negotiation[operation]) * costs.negotiation_ns[operation]
        lead -= (1 - transfer[operation]) * costs.copies_ns[operation]
        gap = replay._gap_ns[operation] * min(latency[operation], 1.0)
        run = costs.latency_ns[operation] * latency[operation] + costs.transfer_ns[operation] * transfer[operation]
        return float(max(ready + lead, behind + gap) + run)

    def finish(rank: int, step: int) -> float:
        segment = int(graph.end_segment[rank, step])
        return begin(segment) + own(int(graph.segment_piece[segment]), int(graph.end_piece[rank, step]))

    last = [max(finish(rank, step) for rank in range(ranks)) for step in range(steps)]
    return [float(ns) for ns in np.diff([float(graph.steps.start_ns[:, 0].max()), *last])]


@st.composite
def changes(draw: st.DrawFn, replay: Replay) -> Change:
    """Any change: factors from 0 to 3 by rank and step, or operation, and operations that go."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape, count = replay.graph.steps.start_ns.shape, len(replay.graph.operations)
    parts = draw(st.sets(st.sampled_from(["forward", "backward", "optimizer", "other"])))
    by_operation: list[Any] = [
        draw(st.sampled_from([1.0, 0.0, 0.5, 2.0, random.uniform(0, 3, count)])) for _ in range(3)
    ]
    gone_ratio = draw(st.sampled_from([0.0, 0.3, 1.0]))
    return Change(
        work={part: random.uniform(0, 3, shape) for part in sorted(parts)},
        latency=by_operation[0],
        transfer=by_operation[1],
        negotiation=by_operation[2],
        gone=random.random(count) < gone_ratio if gone_ratio else None,
    )


@given(plans())
@settings(max_examples=examples(8))
def test_without_a_change_the_measured_steps_come_out(plan: Plan) -> None:
    for warm_up in (0, 1):
        replay = replay_of(record(plan), warm_up)

        assert len(replay.graph.wait_target)
        assert replay.error_ratio == pytest.approx(0, abs=1e-12)
        assert replay.baseline_ns.tolist() == pytest.approx(np.diff(ends_of(plan).max(axis=0), prepend=0)[warm_up:])


@given(st.integers(1, 4), st.integers(3, 12), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(8))
def test_without_a_change_the_steps_of_blocking_calls_come_out(ranks: int, count: int, seed: int) -> None:
    """Parts in any order with waits between them, for which all ranks meet."""
    random = np.random.default_rng(seed)
    steps: list[list[list[tuple[str, float]]]] = [[[] for _ in range(count)] for _ in range(ranks)]
    for step in range(count):
        for _ in range(random.integers(1, 4)):
            took = random.integers(0, 20_000, (ranks, 3)) / 1000
            last, bytes_ms = took.sum(axis=1).max(), random.integers(1, 9000) / 1000
            for rank in range(ranks):
                parts = random.permutation(["forward", "backward", "host"]).tolist()
                missing = round(last - took[rank].sum(), 3)
                waits = [("wait:negotiate", missing), ("wait:collective", bytes_ms)]
                steps[rank][step] += [*zip(parts, took[rank].tolist(), strict=True), *waits]
    replay = replay_of(make_trace(steps))

    assert len(replay.graph.wait_target)
    assert replay.error_ratio == pytest.approx(0, abs=1e-12)


@given(st.data())
@settings(max_examples=examples(8))
def test_any_change_does_what_a_slow_simulation_says(data: st.DataObject) -> None:
    replay = replay_of(record(data.draw(plans())))
    change = data.draw(changes(replay))

    assert replay.steps_ns([change])[0].tolist() == pytest.approx(slowly(replay, change), rel=1e-9, abs=1.0)


@given(st.data())
@settings(max_examples=examples(8))
def test_several_changes_at_once_are_each_alone_and_together_their_product(data: st.DataObject) -> None:
    replay = replay_of(record(data.draw(plans())))
    several = data.draw(st.lists(changes(replay), min_size=2, max_size=5))
    together = replay.steps_ns(several)

    assert together.shape == (len(several), replay.graph.steps.count)
    for change, steps in zip(several, together, strict=True):
        assert steps.tolist() == replay.steps_ns([change])[0].tolist()
    every = all_of(several)
    assert replay.steps_ns([every])[0].tolist() == pytest.approx(slowly(replay, every), rel=1e-9, abs=1.0)


def test_more_changes_than_are_held_at_once_are_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = replay_of(record(even(2, 6, 2)))
    several = [Change(work={"forward": number / 10}) for number in range(7)]
    usual = replay.steps_ns(several)
    monkeypatch.setattr("tlkit.collector.predict.replay.MAX_NUMBERS", 1)

    assert np.array_equal(replay.steps_ns(several), usual)


@given(plans(), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(8))
def test_changed_work_gives_the_run_that_would_have_been_made(plan: Plan, seed: int) -> None:
    """The plan with other work is played anew; collectives that never queue have nothing to estimate."""
    random = np.random.default_rng(seed)
    plan = replace(plan, backward=plan.backward[:, :, :1], run=plan.run[:, :1], gap=0, nbytes=None)
    factors = random.choice([0.25, 0.5, 2.0], plan.forward.shape)
    plan = replace(plan, forward=plan.forward * 4)
    changed = replace(plan, forward=(plan.forward * factors).astype(np.int64))
    expected = np.diff(ends_of(changed).max(axis=0), prepend=0)

    replay = replay_of(record(plan), warm_up=0)
    assert replay.steps_ns([Change(work={"forward": factors})])[0].tolist() == pytest.approx(expected.tolist(), abs=1)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_half_of_an_excess_saves_half_of_it(ranks: int) -> None:
    """40 ms more on one rank; 20 of them gone save 20 of each step."""
    facts = facts_of(record(straggling(even(ranks, 10, 2), ranks - 1, 40 * MS)))
    less = np.zeros((ranks, 9))
    less[-1] = 20 * MS

    assert facts.outcome(facts.without("forward", less)).saved_ns.tolist() == pytest.approx([20 * MS] * 9)


def test_no_more_is_saved_than_until_the_next_rank() -> None:
    """40 ms more on rank 2, 30 on rank 1: without the 40 the step is 10 ms shorter, without both 40."""
    facts = facts_of(record(straggling(straggling(even(3, 10), 2, 40 * MS), 1, 30 * MS)))
    alone, both = np.zeros((3, 9)), np.zeros((3, 9))
    alone[2], both[2], both[1] = 40 * MS, 40 * MS, 30 * MS

    assert facts.outcome(facts.without("forward", alone)).saved_ns.tolist() == pytest.approx([10 * MS] * 9)
    assert facts.outcome(facts.without("forward", both)).saved_ns.tolist() == pytest.approx([40 * MS] * 9)


def test_work_of_a_rank_that_waits_saves_nothing() -> None:
    facts = facts_of(record(straggling(even(2, 10), 1, 40 * MS)))
    less = np.array([[30.0 * MS] * 9, [0.0] * 9])

    assert facts.outcome(facts.without("forward", less)).saved_ns.tolist() == pytest.approx([0.0] * 9)


def test_a_hidden_collective_appears_when_backward_is_quicker() -> None:
    """Two collectives of 20 ms behind 30 ms of backward each: the first is hidden until backward takes half."""
    plan = replace(even(2, 10, 2), run=np.full((10, 2), 20 * MS))
    usual = 30 + 60 + 1 + 20 + 3
    # Backward 30 ms: ready after 15 and 30; the first ends at 36, the second at 56.
    quick = 30 + 15 + 1 + 20 + 20 + 3
    replay = replay_of(record(plan))

    assert replay.baseline_ns.tolist() == pytest.approx([usual * MS] * 9)
    assert replay.steps_ns([Change(work={"backward": 0.5})])[0].tolist() == pytest.approx([quick * MS] * 9)


def test_collectives_keep_their_distance_across_steps() -> None:
    """Two of 5 ms with 10 ms in front of each: without any work a step takes 30 ms."""
    plan = replace(even(2, 10, 2, gap=10 * MS), forward=np.full((2, 10), 20 * MS), lead=0)
    plan = replace(plan, backward=np.full((2, 10, 2), MS), optimizer=np.full((2, 10), MS))
    replay = replay_of(record(plan))
    nothing = Change(work=dict.fromkeys(("forward", "backward", "optimizer"), 0.0))

    assert replay.baseline_ns.tolist() == pytest.approx([42 * MS] * 9)
    # The first analysed step has nothing in front of it.
    assert replay.steps_ns([nothing])[0, 1:].tolist() == pytest.approx([30 * MS] * 8)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_quicker_compute_waits_for_the_loader(workers: int) -> None:
    """A batch every 40 ms is made beside 60 ms of compute; with a quarter of that, the loader is what the steps take."""
    shape = {"busy": 40 * MS * workers, "workers": workers}
    replay = replay_of(load(60, compute=60 * MS, **shape))
    assert len(replay.graph.loading) == 59
    assert not replay.graph.loading.held_up[5:].any()
    assert replay.error_ratio == pytest.approx(0, abs=1e-12)

    truth = find_steps(load(60, compute=15 * MS, **shape), warm_up=1).job_ns
    steps = replay.steps_ns([Change(work={"forward": 0.25}), Change(work={"forward": 0.25}, loading=0.25)])
    # Workers that begin together deliver together: what counts is a whole number of rounds.
    assert truth[-24:].sum() == 24 * 40 * MS
    assert steps[0, -24:].sum() == pytest.approx(24 * 40 * MS)
    assert steps[1, 30:].tolist() == pytest.approx([16 * MS] * 29)


def test_a_loader_that_holds_the_steps_up_gives_way_to_compute() -> None:
    """40 ms a batch beside 15 of compute: workers that take a quarter leave compute and the taking."""
    replay = replay_of(load(40, compute=15 * MS, busy=40 * MS, workers=1))

    assert replay.graph.loading.held_up.all()
    assert replay.baseline_ns.tolist() == pytest.approx([40 * MS] * 39)
    steps = replay.steps_ns([Change(work={"forward": 0.0}), Change(loading=0.5)])
    assert steps[0, 5:].tolist() == pytest.approx([40 * MS] * 34)
    assert steps[1, 5:].mean() == pytest.approx(20 * MS, rel=0.1)


@pytest.mark.parametrize(("runtime", "saved_ms"), [("horovod", 30), ("torch", 0)])
def test_process_sets_share_an_executor_where_there_is_one(runtime: str, saved_ms: int) -> None:
    """The first bucket is another process set's: with one executor the second one waits for it, else it was just late."""
    plan = replace(even(2, 12, buckets=2), run=np.full((12, 2), 31 * MS), lead=0)
    trace = record(plan)
    table = trace.collectives
    first = table["seq"].to_numpy() % 2 == 0
    columns = {name: table[name].to_numpy() for name in COLLECTIVE_COLUMNS} | {
        "process_set": np.where(first, 1, 0),
        "seq": table["seq"].to_numpy() // 2,
    }
    # Both are asked for at the end of backward.
    end = table.groupby(["rank", columns["seq"]])["submitted_ns"].transform("max").to_numpy()
    columns["submitted_ns"] = end
    trace = replace(
        trace, collectives=make_table(COLLECTIVE_COLUMNS, columns), meta=replace(trace.meta, runtime=runtime)
    )
    replay = replay_of(trace)
    in_front = replay.graph.operations.process_set == 1
    saved = replay.saved_ns(Change(latency=np.where(in_front, 1 / 31, 1.0), transfer=np.where(in_front, 1 / 31, 1.0)))

    assert replay.error_ratio == pytest.approx(0, abs=1e-9)
    assert saved[1:].mean() / MS == pytest.approx(saved_ms, abs=1)


def test_workers_that_were_busy_before_the_first_analysed_step_are_followed() -> None:
    """One worker holds the loop up; the other's first batch was made long before, so its next one, a long one, is in time."""
    busy = [300 * MS if step % 2 else 150 * MS for step in range(24)]
    busy[6] = 315 * MS
    replay = replay_of(load(24, compute=40 * MS, busy=busy, workers=2), warm_up=4)

    assert replay.error_ratio == pytest.approx(0, abs=1e-9)
