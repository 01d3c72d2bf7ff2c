"""What each kind of trace is diagnosed as."""

import gzip
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tests.traces import MS, Parts, make_trace, uniform
from tlkit.collector import analyze, make_report
from tlkit.timeline.model.trace import SPAN_COLUMNS, make_table
from tlkit.timeline.read.open import open_trace
from tlkit.timeline.vocabulary import Category

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPOSITORY / "benchmarks" / "diagnosis"))

from summaries import keep_sums  # noqa: E402  needs the path above

HEALTHY = {"data": 0.5, "forward": 30, "backward": 60, "wait:collective": 2, "optimizer": 3, "host": 2}


def jittered(steps: Sequence[Sequence[Parts]], seed: int = 1) -> list[list[Parts]]:
    """Every part up to 5 % longer or shorter, and every rank waits at the collective until the last one has come."""
    chance = random.Random(seed)
    shaken = [[[(part, ms * chance.uniform(0.95, 1.05)) for part, ms in step] for step in rank] for rank in steps]
    clocks = [0.0] * len(shaken)
    for step in zip(*shaken, strict=True):
        positions = [next(i for i, (part, _) in enumerate(parts) if part == "wait:collective") for parts in step]
        moving = step[0][positions[0]][1]
        asked = [
            clock + sum(ms for _, ms in parts[:position])
            for clock, parts, position in zip(clocks, step, positions, strict=True)
        ]
        for rank, (parts, position) in enumerate(zip(step, positions, strict=True)):
            parts[position] = ("wait:collective", moving)
            parts.insert(position, ("wait:negotiate", max(asked) - asked[rank]))
            clocks[rank] = max(asked) + sum(ms for part, ms in parts[position + 1 :])
    return [list(parts) for parts in shaken]


def verdict_of(steps: list[list[Parts]], **options: Any) -> tuple[str, str, tuple[int, ...]]:
    verdict = analyze(make_trace(jittered(steps), **options)).verdict
    return verdict.class_, verdict.cause, verdict.ranks


def changed(ranks: int, count: int, which: Sequence[int], every: int = 1, **extra: float) -> list[list[Parts]]:
    """Healthy steps, but some parts are longer on some ranks, in every so many steps."""
    steps = uniform(ranks, count, HEALTHY)
    for rank in which:
        for number in range(0, count, every):
            steps[rank][number] = [(part, ms + extra.get(part, 0)) for part, ms in steps[rank][number]]
    return steps


def test_a_run_that_computes_is_healthy_and_says_so() -> None:
    """No finding is worth a change, and the sentence names what the time goes to."""
    analysis = analyze(make_trace(jittered(uniform(4, 30, HEALTHY))))

    assert analysis.verdict.class_ == "healthy"
    assert "compute-bound" in analysis.verdict.sentence
    assert all(finding.predicted_gain <= 0.05 for finding in analysis.findings)


def test_without_a_collective_nothing_is_claimed_of_communication() -> None:
    """Ranks that record none may wait all the same, in what looks like computation."""
    analysis = analyze(make_trace(uniform(2, 20, {"forward": 30, "backward": 60, "optimizer": 3})))

    assert analysis.facts.trace.collectives.empty
    assert "compute-bound" not in analysis.verdict.sentence
    assert "cannot be told" in analysis.verdict.sentence
    assert any("no collective was found" in note for note in analysis.notes)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize(
    ("part", "cause"),
    [
        ("forward", "slow-forward"),
        ("backward", "slow-backward"),
        ("optimizer", "slow-optimizer"),
        ("host", "slow-host-code"),
    ],
)
def test_a_slow_rank_is_a_straggler_with_its_cause(ranks: int, part: str, cause: str) -> None:
    """Whatever part of its own work is longer."""
    assert verdict_of(changed(ranks, 30, [ranks - 1], **{part: 40})) == ("straggler", cause, (ranks - 1,))


def test_the_gain_of_a_straggler_is_what_the_others_wait() -> None:
    """40 ms of a step of about 140 ms."""
    verdict = analyze(make_trace(jittered(changed(4, 60, [2], forward=40)))).verdict

    assert verdict.predicted_gain == pytest.approx(40 / 137.5, abs=0.03)


def test_a_rank_that_is_slow_now_and_then_is_found() -> None:
    """One step in ten."""
    assert verdict_of(changed(3, 60, [1], every=10, forward=300)) == ("straggler", "periodic-slow-forward", (1,))


def test_a_rank_that_is_slow_now_and_then_may_be_a_little_slow_always() -> None:
    """One step in five takes 200 ms more; a slightly slower core, 4 ms in every step, does not make that "every step"."""
    steps = changed(2, 60, [1], every=5, forward=200)
    steps[1] = [[*step, ("forward", 4)] for step in steps[1]]
    analysis = analyze(make_trace(jittered(steps)))

    assert analysis.verdict.cause == "periodic-slow-forward"
    assert "in every 5th step" in analysis.verdict.sentence


def test_ranks_that_are_late_in_turn_by_chance_are_no_stragglers() -> None:
    """Large jitter alone has no culprit."""
    chance = random.Random(5)
    steps = [
        [[(part, ms * chance.uniform(0.7, 1.3)) for part, ms in HEALTHY.items()] for _ in range(60)] for _ in range(4)
    ]

    assert "straggler" not in {finding.class_ for finding in analyze(make_trace(jittered(steps))).findings}


def test_a_slow_loader_on_every_rank_is_data() -> None:
    """All ranks are named."""
    assert verdict_of(changed(3, 30, [0, 1, 2], data=60)) == ("data", "slow-loader", (0, 1, 2))


def test_a_slow_loader_on_one_rank_is_data_with_that_rank() -> None:
    """The others' wait is its evidence, not a finding of its own."""
    analysis = analyze(make_trace(jittered(changed(3, 30, [1], data=60))))

    assert (analysis.verdict.class_, analysis.verdict.ranks) == ("data", (1,))
    assert "straggler" not in {finding.class_ for finding in analysis.findings}


def test_large_exposed_transfers_are_bandwidth() -> None:
    """Half precision would save half of the exposed time."""
    steps = uniform(2, 30, HEALTHY | {"wait:collective": 150})
    analysis = analyze(make_trace(jittered(steps), nbytes=60_000_000))

    assert (analysis.verdict.class_, analysis.verdict.cause) == ("communication", "bandwidth-bound")
    assert analysis.verdict.predicted_gain == pytest.approx(0.5 * 150 / 245.5, abs=0.03)


def test_many_small_transfers_are_latency() -> None:
    """Fusing fifty collectives of 256 bytes into one would save nearly all their time."""
    step: Parts = [("forward", 20), ("backward", 30), *[("wait:collective", 1.0)] * 50, ("optimizer", 2)]
    trace = make_trace([[step] * 20] * 2, nbytes=256, tensors_per_collective=1)
    verdict = analyze(trace).verdict

    assert (verdict.class_, verdict.cause) == ("communication", "many-small-collectives")
    assert verdict.predicted_gain == pytest.approx(49 / 102, abs=0.02)
    assert "HOROVOD_FUSION_THRESHOLD" in verdict.remedy


def test_code_in_the_loop_of_every_rank_is_named() -> None:
    """Neither data nor model nor communication."""
    assert verdict_of(changed(2, 30, [0, 1], host=80))[:2] == ("compute", "host-code")


def test_checkpoints_on_every_rank_are_named() -> None:
    """Every tenth step writes for a second."""
    steps = uniform(2, 40, HEALTHY | {"checkpoint": 0})
    for rank in steps:
        for number in range(5, 40, 10):
            rank[number] = [(part, 1000 if part == "checkpoint" else ms) for part, ms in rank[number]]

    assert verdict_of(steps)[:2] == ("compute", "checkpoint-stall")


def test_warm_up_is_left_out_and_said() -> None:
    """The first steps cost ten times as much."""
    steps = uniform(2, 30, HEALTHY)
    for rank in steps:
        for number in (0, 1, 2):
            rank[number] = [(part, 10 * ms) for part, ms in rank[number]]
    analysis = analyze(make_trace(steps))

    assert analysis.facts.steps.excluded == 3
    assert "the first 3 steps were left out as warm-up" in analysis.notes


def test_without_steps_the_verdict_says_what_to_record() -> None:
    """An empty training is unknown, not healthy."""
    verdict = analyze(make_trace([[], []])).verdict

    assert (verdict.class_, verdict.cause) == ("unknown", "no-steps")
    assert "Record" in verdict.sentence


parts = st.lists(
    st.tuples(
        st.sampled_from(["data", "forward", "backward", "optimizer", "host", "wait", "wait:collective", "wait:queue"]),
        st.floats(0, 50),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.lists(parts, min_size=4, max_size=4), min_size=1, max_size=3))
def test_the_parts_of_every_step_sum_to_the_step(steps: list[list[Parts]]) -> None:
    """Whatever the steps are made of; in the report as well."""
    analysis = analyze(make_trace(steps), warm_up=0)
    breakdown = analysis.facts.breakdown
    report = make_report(analysis)

    assert (breakdown.step_ns == analysis.facts.steps.duration_ns).all()
    assert all((values >= 0).all() for values in breakdown.parts_ns.values())
    assert sum(report["breakdown"]["median_step_ns"].values()) == report["steps"]["median_ns"]


def test_hidden_communication_is_apart_from_the_step() -> None:
    """A collective under backward is hidden; the step's parts do not hold it."""
    trace = make_trace([[[("forward", 10), ("backward", 20)]] * 4] * 2)
    under = trace.spans[trace.spans["category"] == "backward"].assign(
        lane="communication", lane_kind="communication", category="collective", name="ALLREDUCE"
    )
    joined = make_table(SPAN_COLUMNS, dict(pd.concat([trace.spans, under], ignore_index=True)))
    report = make_report(analyze(replace(trace, spans=joined)))

    assert report["breakdown"]["hidden_communication_ns"] == 20 * MS
    assert report["breakdown"]["median_step_ns"]["collective"] == 0
    assert report["breakdown"]["median_step_ns"]["backward"] == 20 * MS


def test_a_trace_of_communication_alone_says_what_it_cannot_know() -> None:
    """The rest of the step is nobody's, and the verdict asks for a better recording."""
    known = frozenset({Category.NEGOTIATE, Category.QUEUE, Category.FUSION, Category.COLLECTIVE})
    analysis = analyze(make_trace(uniform(1, 30, {"host": 90, "wait:collective": 10}), known=known))

    assert (analysis.verdict.class_, analysis.verdict.cause) == ("unknown", "time-outside-communication")
    assert analysis.verdict.predicted_gain == 0


@pytest.mark.parametrize("seed", range(3))
def test_ups_and_downs_of_other_parts_hide_no_slow_part(seed: int) -> None:
    """Backward varies by 10 ms from step to step on every rank; rank 1's optimizer takes 12 ms longer, always."""
    chance = random.Random(seed)
    steps = [
        [[(part, ms + (chance.expovariate(1 / 10) if part == "backward" else 0)) for part, ms in step] for step in rank]
        for rank in changed(3, 40, [1], optimizer=12)
    ]
    analysis = analyze(make_trace(jittered(steps)))
    finding = next(one for one in analysis.findings if one.class_ == "straggler")

    assert (finding.cause, finding.ranks) == ("slow-optimizer", (1,))
    assert finding.evidence["pattern"] == "always"
    assert finding.evidence["mean_excess_ns"] == pytest.approx(12 * MS, rel=0.1)


def test_sums_of_steps_are_no_pipeline(tmp_path: Path) -> None:
    """They do not tell collectives from messages: all waits are alike, and a nanosecond decided whether they were a pipeline's."""
    (tmp_path / "full").mkdir()
    for shard in (REPOSITORY / "samples" / "traces" / "slow-rank").glob("*.gz"):
        text = gzip.decompress(shard.read_bytes()).decode().replace('"runtime": "tlkit"', '"runtime": "torch"')
        (tmp_path / "full" / shard.stem).write_text(text)
    keep_sums(tmp_path / "full", tmp_path / "sums")
    trace = open_trace(tmp_path / "sums")
    # One rank's steps are a nanosecond longer than those of the other, which mean steps do not show.
    longer = replace(trace, steps=trace.steps.assign(end_ns=trace.steps["end_ns"] + (trace.steps["rank"] == 0)))

    for one in (trace, longer):
        analysis = analyze(one)
        assert not analysis.facts.is_pipeline
        assert (analysis.verdict.cause, analysis.verdict.ranks) == ("slow-forward", (1,))
