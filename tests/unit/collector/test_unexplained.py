"""A run is healthy only if no change of the whole family gains 5 %: what no rule has words for is told as that."""

from dataclasses import replace

import numpy as np
import pytest

from tests.traces import MS
from tlkit.collector import Analysis, analyze
from tlkit.collector.findings import RULES
from tlkit.collector.findings.straggler import SlowRanks
from tlkit.collector.findings.unexplained import in_words_of, unexplained
from tlkit.timeline.model.trace import COUNTER_COLUMNS, Trace, make_table
from tlkit.timeline.vocabulary import HOST_CORES, HOST_CPU, PROCESS_CPU

from .runs import Plan, even, record

LATE = 12 * MS


def each_rank_once(ranks: int = 16) -> Plan:
    """Another rank is 12 of 100 ms late in each step: too seldom for any of them to stand out."""
    plan = even(ranks, ranks)
    noise = np.random.default_rng(1).normal(0, 0.1 * MS, plan.forward.shape).astype(np.int64)
    return replace(plan, forward=plan.forward + noise + np.eye(ranks, dtype=np.int64) * LATE)


def without_straggler_rule(plan: Plan) -> Analysis:
    """As if nobody had thought of slow ranks."""
    analysis = analyze(record(plan), rules=[rule for rule in RULES if not isinstance(rule, SlowRanks)])
    assert analysis.verdict.class_ == "healthy"
    return analysis


def test_a_cost_without_a_rule_is_told_with_part_ranks_and_gain() -> None:
    """Nearly 12 ms of each step go to whoever's turn it is."""
    analysis = without_straggler_rule(each_rank_once())
    (finding,) = unexplained(analysis.facts, analysis.findings)

    assert (finding.class_, finding.cause) == ("straggler", "stragglers-in-turn")
    assert finding.remedy.startswith("Ranks ")
    assert set(finding.ranks) == set(range(1, 16))  # the first step is warm-up
    parts = finding.evidence["excess_by_category_ns"]
    assert max(parts, key=parts.__getitem__) == "forward"
    assert finding.predicted_gain == pytest.approx(LATE / analysis.facts.mean_step_ns, abs=0.01)
    assert "not the same ones each time, in forward" in finding.sentence


def test_the_verdict_is_never_healthy_then() -> None:
    """Whatever the rules say of it."""
    verdict = analyze(record(each_rank_once())).verdict

    assert verdict.class_ == "straggler"
    assert verdict.predicted_gain > 0.05


@pytest.mark.parametrize("seed", range(5))
def test_chance_is_not_explained(seed: int) -> None:
    """Ranks that vary by 5 %, on their own and together."""
    plan, random = even(8, 40, buckets=3), np.random.default_rng(seed)
    together, alone = random.lognormal(0, 0.05, (1, 40)), random.lognormal(0, 0.05, (8, 40))
    forward = (plan.forward * together * alone).astype(np.int64)
    backward = (plan.backward * (together * random.lognormal(0, 0.05, (8, 40)))[:, :, None]).astype(np.int64)
    analysis = analyze(record(replace(plan, forward=forward, backward=backward)))

    assert unexplained(analysis.facts, []) == []


def test_what_has_a_name_is_not_told_twice() -> None:
    """Only where no finding is worth a change."""
    analysis = without_straggler_rule(each_rank_once())
    (finding,) = unexplained(analysis.facts, [])

    assert unexplained(analysis.facts, [finding]) == []


def test_a_finding_that_falls_just_short_lends_its_words() -> None:
    """A rule that sees a little less of the same says what it is; the gain is that of all of it."""
    analysis = without_straggler_rule(each_rank_once())
    (whole,) = unexplained(analysis.facts, [])
    assert whole.outcome is not None
    short = replace(whole, cause="slow-forward", predicted_gain=0.9 * whole.predicted_gain, sentence="It sleeps.")
    elsewhere = replace(short, ranks=(3,))
    too_small = replace(short, predicted_gain=0.5 * whole.predicted_gain)

    assert in_words_of(analysis.facts, [elsewhere, too_small], whole) is whole
    named = in_words_of(analysis.facts, [elsewhere, too_small, short], whole)
    assert (named.cause, named.sentence) == ("slow-forward", "It sleeps.")
    assert (named.predicted_gain, named.outcome) == (whole.predicted_gain, whole.outcome)


def test_what_all_ranks_have_in_common_now_and_then_is_told_by_its_rhythm() -> None:
    """Every third step the loop does more on all ranks: too little for the rule that looks at whole steps."""
    plan = even(4, 36)
    random = np.random.default_rng(1)
    together = random.normal(0, 1.5 * MS, (1, 36, 1)).astype(np.int64)
    optimizer = plan.optimizer.copy()
    optimizer[:, 2::3] += 18 * MS
    trace = record(replace(plan, optimizer=optimizer, backward=plan.backward + together))
    analysis = analyze(trace, rules=[])
    (found,) = unexplained(analysis.facts, [])

    assert (found.class_, found.cause, found.ranks) == ("compute", "periodic-stalls", (0, 1, 2, 3))
    assert found.evidence["part"] == "optimizer"
    assert found.sentence.startswith("Optimizer of every rank takes longer in every 3rd step")


def with_busy_cores(trace: Trace) -> Trace:
    """Everything the two cores of the host have is taken, by the ranks themselves."""
    end_ns = int(trace.spans["start_ns"].max())
    rows = [
        (rank, name, at_ns, value)
        for at_ns in range(0, end_ns, 100 * MS)
        for rank in trace.meta.ranks
        for name, value in ((HOST_CPU, 100.0), (HOST_CORES, 2.0), (PROCESS_CPU, 200.0 / len(trace.meta.ranks)))
    ]
    rank, name, ts_ns, value = (np.array(column, dtype=object) for column in zip(*rows, strict=True))
    data = {"rank": rank.astype(np.int64), "name": name, "ts_ns": ts_ns.astype(np.int64), "value": value.astype(float)}
    return replace(trace, counters=make_table(COUNTER_COLUMNS, data))


def test_collectives_of_ranks_that_lack_cores_are_explained() -> None:
    """Processors move the bytes; where the host has some left, nothing says why that takes 40 of 133 ms."""
    trace = record(replace(even(4, 40), run=np.full((40, 1), 40 * MS)))
    free, taken = (analyze(one, rules=[]) for one in (trace, with_busy_cores(trace)))

    assert [one.evidence["what"] for one in unexplained(free.facts, [])] == ["collectives"]
    assert unexplained(taken.facts, []) == []


def test_two_ranks_whose_cores_come_and_go_are_healthy() -> None:
    """On a shared host either rank takes a fifth longer for backward in every other step or so: one is always the quicker one."""
    plan = even(2, 60)
    chance = np.random.default_rng(3)
    slower = np.where(chance.random(plan.backward.shape) < 0.4, 0.2, 0.0) + chance.normal(0, 0.02, plan.backward.shape)
    backward = (plan.backward * (1 + slower)).astype(np.int64)

    assert analyze(record(replace(plan, backward=backward))).verdict.class_ == "healthy"
