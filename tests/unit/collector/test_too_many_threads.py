"""Operators that are computed by more threads than a rank has cores, and ranks that are bound to the same cores."""

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd
import pytest

from tests.traces import MS, make_trace, uniform
from tlkit.collector import analyze
from tlkit.collector.findings.cores import bindings_of_all
from tlkit.collector.model.crowding import find_bindings, find_crowds
from tlkit.timeline.model.trace import COUNTER_COLUMNS, Trace, make_table
from tlkit.timeline.vocabulary import (
    FIRST_CORE,
    HOST_CORES,
    HOST_CPU,
    LAST_CORE,
    OPERATOR_THREADS,
    OWN_CORES,
    PROCESS_CPU,
)

from .test_diagnosis import HEALTHY, jittered
from .test_rules import best, metered
from .test_starvation import loaded


def with_counters(trace: Trace, told: Mapping[int, Mapping[str, float]]) -> Trace:
    """With counters at the end of each rank's fifth step."""
    rows: dict[str, list[object]] = {name: [] for name in COUNTER_COLUMNS}
    for rank, values in told.items():
        at = int(trace.steps.loc[trace.steps["rank"] == rank, "end_ns"].iloc[5])
        for name, value in values.items():
            for column, item in zip(COUNTER_COLUMNS, (rank, name, at, value), strict=True):
                rows[column].append(item)
    counters = pd.concat([trace.counters.astype({"name": "object"}), make_table(COUNTER_COLUMNS, rows)])
    return replace(
        trace, counters=make_table(COUNTER_COLUMNS, {name: counters[name].to_numpy() for name in COUNTER_COLUMNS})
    )


def told(threads: float, own: float, host: float = 0.0) -> dict[str, float]:
    """By a rank; the host's cores by its first rank only."""
    return {OPERATOR_THREADS: threads, OWN_CORES: own, **({HOST_CORES: host} if host else {})}


@pytest.mark.parametrize(
    ("by_rank", "expected"),
    [
        ({0: told(8, 2, 2), 1: told(8, 2)}, {0: (8, 1.0), 1: (8, 1.0)}),
        ({0: told(2, 2, 2), 1: told(2, 2)}, {0: (2, 1.0), 1: (2, 1.0)}),
        ({0: told(4, 8, 8), 1: told(4, 8)}, {}),  # four each
        ({0: told(4, 4, 8), 1: told(4, 4)}, {}),  # bound
        ({0: told(8, 4, 8), 1: told(4, 4)}, {0: (8, 4.0)}),
        ({0: {HOST_CORES: 2}, 1: {HOST_CORES: 2}}, {}),  # one thread: nothing is told
        ({0: told(1, 1, 1), 1: told(1, 1)}, {}),
    ],
)
def test_a_rank_has_its_share_of_the_cores(
    by_rank: Mapping[int, Mapping[str, float]], expected: Mapping[int, tuple[int, float]]
) -> None:
    """Those that it is bound to, or of those that all ranks of the host may use."""
    trace = with_counters(make_trace(uniform(2, 20, HEALTHY)), by_rank)

    assert {rank: (crowd.threads, crowd.cores) for rank, crowd in find_crowds(trace).items()} == expected


def test_threads_of_torch_compute_no_operator_of_tensorflow() -> None:
    """Where the runtime moves its gradients by torch."""
    trace = with_counters(make_trace(uniform(2, 20, HEALTHY)), {0: told(8, 2, 2), 1: told(8, 2)})

    assert not find_crowds(replace(trace, meta=replace(trace.meta, framework="tensorflow")))


def crowded(by_rank: Mapping[int, Mapping[str, float]], *, others: float = 0.0) -> Trace:
    """Two ranks whose forward waits 20 ms for cores and 30 for other threads."""
    steps = jittered(uniform(2, 40, HEALTHY | {"forward": 80}))
    changes = {("forward starved_ns", rank): lambda _: 20.0 for rank in range(2)}
    changes |= {("forward cpu_ns", rank): lambda parts: parts["forward"] - 50 for rank in range(2)}
    load = {HOST_CPU: 100.0, PROCESS_CPU: 100 - 100 * others}
    return with_counters(
        metered(steps, make_trace(steps), changes), {rank: load | dict(by_rank[rank]) for rank in by_rank}
    )


def test_they_wait_for_cores_and_for_each_other() -> None:
    """All of it is promised, and nothing else speaks of it."""
    analysis = analyze(crowded({0: told(8, 2, 2), 1: told(8, 2)}))
    finding = best(analysis, "too-many-threads")

    assert analysis.verdict.cause == "too-many-threads"
    assert finding.ranks == (0, 1)
    assert finding.evidence["lost_ns"] == pytest.approx(50 * MS, rel=0.02)
    assert finding.predicted_gain == pytest.approx(50 / 147.5, abs=0.02)
    assert finding.remedy.startswith("OMP_NUM_THREADS=1 for each rank")
    assert not {one.cause for one in analysis.findings} & {"starved-of-cores", "blocked-forward", "interpreter-lock"}


@pytest.mark.parametrize(("threads", "others"), [(1.0, 0.0), (8.0, 0.5)])
def test_what_others_take_is_not_the_ranks_fault(threads: float, others: float) -> None:
    """Where they have one thread for a core, or other programs have half of the host."""
    trace = crowded({0: told(threads, 2, 2), 1: told(threads, 2)}, others=others)
    causes = {finding.cause for finding in analyze(trace).findings}

    assert "too-many-threads" not in causes
    assert "starved-of-cores" in causes


def bound(first: int, last: int, host: float) -> dict[str, float]:
    """To all cores from one to another, by a rank of a host that has so many."""
    return {OWN_CORES: last - first + 1, FIRST_CORE: first, LAST_CORE: last, HOST_CORES: host}


@pytest.mark.parametrize(
    ("by_rank", "expected"),
    [
        ([bound(0, 0, 2), bound(0, 0, 2)], [(0, 1)]),
        ([bound(0, 0, 2), bound(1, 1, 2)], []),  # each has its own
        ([bound(0, 3, 8), bound(0, 3, 8)], []),  # enough for both
        ([bound(0, 0, 1), bound(0, 0, 1)], []),  # there are no more
        ([{OWN_CORES: 2, HOST_CORES: 8}, {OWN_CORES: 2, HOST_CORES: 8}], []),  # which ones is not told
        ([bound(0, 1, 8), bound(3, 3, 8), bound(0, 1, 8), bound(0, 1, 8)], [(0, 2, 3)]),
    ],
)
def test_ranks_that_are_bound_to_the_same_cores(
    by_rank: list[dict[str, float]], expected: list[tuple[int, ...]]
) -> None:
    """Fewer than they are, on a host that has more."""
    trace = with_counters(make_trace(uniform(len(by_rank), 20, HEALTHY)), dict(enumerate(by_rank)))

    assert [binding.ranks for binding in find_bindings(trace)] == expected


def test_who_is_bound_to_which_core_is_said() -> None:
    """And not that something else has it."""
    trace = loaded(lambda _: []).facts.trace
    finding = best(analyze(with_counters(trace, dict.fromkeys(range(2), bound(1, 1, 2)))), "starved-of-cores")

    assert finding.sentence.startswith("Ranks 0, 1 are bound to core 1 alone, of 2 that the host has. In each ")
    assert "something else" not in finding.sentence
    assert "sched_setaffinity" in finding.remedy
    assert finding.evidence["bound_together"][0]["ranks"] == (0, 1)


@pytest.mark.parametrize(("bound_ranks", "is_of_all"), [((0, 1, 2, 3), True), ((0, 1), False)])
def test_some_bound_ranks_are_not_why_others_wait(bound_ranks: tuple[int, ...], *, is_of_all: bool) -> None:
    """Ranks 2 and 3 wait for another reason, if they are not bound."""
    trace = make_trace(uniform(4, 20, HEALTHY))
    facts = analyze(with_counters(trace, {rank: bound(0, 0, 8) for rank in bound_ranks})).facts

    assert facts.bindings
    assert bool(bindings_of_all(facts)) == is_of_all


def host(cores: float, own_percent: float) -> dict[int, dict[str, float]]:
    """Of two ranks, a host that is busy all the time, and what each rank has of one core."""
    shared = {HOST_CPU: 100.0, HOST_CORES: cores}
    return {0: {**shared, PROCESS_CPU: own_percent}, 1: {PROCESS_CPU: own_percent}}


@pytest.mark.parametrize(
    ("counters", "gives_more"),
    [
        (host(1, 50), True),
        (host(1, 20), False),  # other programs have the cores
        (host(2, 100), False),  # there is one for each rank
    ],
)
def test_cores_that_a_change_frees_are_the_other_ranks(
    counters: Mapping[int, Mapping[str, float]], *, gives_more: bool
) -> None:
    """Where ranks share them with nobody else."""
    trace = loaded(lambda rank: [("backward", 20.0)] if rank else []).facts.trace
    alone = best(analyze(trace), "slow-backward")
    shared = best(analyze(with_counters(trace, counters)), "slow-backward")

    assert (shared.predicted_gain > alone.predicted_gain + 0.02) == gives_more


def test_a_rank_that_sleeps_frees_no_core() -> None:
    """It is blocked, and had none."""
    trace = loaded(lambda rank: [("backward", 20.0)] if rank else [], runs=False).facts.trace
    alone = best(analyze(trace), "slow-backward")
    shared = best(analyze(with_counters(trace, host(1, 50))), "slow-backward")

    assert shared.predicted_gain == pytest.approx(alone.predicted_gain)
