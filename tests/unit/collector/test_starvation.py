"""A loaded machine: who waits for a core changes from step to step, and what ranks do of their own shows beside that."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.traces import MS, Parts, make_trace, uniform
from tlkit.collector import Analysis, analyze
from tlkit.collector.model.cpu_time import CpuTime
from tlkit.collector.model.starvation import without_starvation
from tlkit.timeline.model.trace import COUNTER_COLUMNS, make_table
from tlkit.timeline.vocabulary import DATA_FETCH

from .test_diagnosis import HEALTHY, jittered
from .test_rules import best, metered, part_of, rows_of, tiny, with_spans

STEPS, MOST_MS = 40, 60.0
PHASES = ("forward", "backward", "optimizer")


def loaded(more: Callable[[int], Parts], *, runs: bool = True, seed: int = 1, every: int = 1) -> Analysis:
    """Two ranks that wait 10 to 60 ms for a core in each phase of each step, by turns, beside what they do.

    Args:
        more: what a rank does besides in each step.
        every: in each so many steps only.
        runs: whether it computes that, and waits for cores as much again; else it sleeps.
    """
    steps, random = jittered(uniform(2, STEPS, HEALTHY)), np.random.default_rng(seed)
    waits = {phase: random.uniform(10, MOST_MS, (2, STEPS)) for phase in PHASES}
    counters: dict[tuple[str, int], Callable[[dict[str, float]], float]] = {}
    for rank in range(2):
        extra = dict(more(rank))
        for phase in PHASES:
            ran = [_sum(step, phase) for step in steps[rank]]
            # A rank that waits longer in one step waits less in another: the sums of both are alike.
            late = [*waits[phase][rank]]
            added = [extra.get(phase, 0.0) * (number % every == every - 1) for number in range(STEPS)]
            starved = [wait + own * runs for wait, own in zip(late, added, strict=True)]
            for number, step in enumerate(steps[rank]):
                steps[rank][number] = [*step, (phase, late[number] + added[number] * (2 if runs else 1))]
            computed = [ms + own * runs for ms, own in zip(ran, added, strict=True)]
            counters[f"{phase} cpu_ns", rank] = _in_order(computed)
            counters[f"{phase} starved_ns", rank] = _in_order(starved)
    trace = make_trace(steps)
    return analyze(metered(steps, trace, counters))


def _sum(step: Parts, phase: str) -> float:
    return sum(ms for part, ms in step if part == phase)


def _in_order(values: list[float]) -> Callable[[dict[str, float]], float]:
    """What a counter shows in one step after the other."""
    left = iter(values)
    return lambda _: next(left)


def test_ranks_that_wait_for_cores_by_turns_are_no_stragglers() -> None:
    """The machine is named, and no rank."""
    for seed in range(3):
        analysis = loaded(lambda _: [], seed=seed)

        assert analysis.verdict.cause == "starved-of-cores"
        assert not [finding for finding in analysis.findings if finding.class_ == "straggler"]


@pytest.mark.parametrize(("runs", "lost_ms"), [(True, 40.0), (False, 20.0)])
def test_what_one_rank_does_more_is_found_on_a_loaded_machine(*, runs: bool, lost_ms: float) -> None:
    """20 ms of computing, which waits for cores as much again, or of sleep, beside waits of 10 to 60."""
    analysis = loaded(lambda rank: [("backward", 20.0)] if rank else [], runs=runs)
    found = best(analysis, "slow-backward")

    assert found.ranks == (1,)
    assert found.evidence["mean_excess_ns"] == pytest.approx(lost_ms * MS, rel=0.35)
    assert found.evidence["root_cause"]["is"] == ("slow-processor" if runs else "blocked")


def test_steps_in_which_all_ranks_do_more_come_before_the_load() -> None:
    """A fifth of a second of computing in each eighth step is the job's, though the machine's load costs more."""
    analysis = loaded(lambda _: [("forward", 200.0)], every=8)

    assert analysis.verdict.cause == "periodic-stalls"
    assert analysis.verdict.predicted_gain < best(analysis, "starved-of-cores").predicted_gain
    assert "Besides, the machine is loaded" in analysis.verdict.sentence


def test_an_update_that_all_ranks_wait_in_by_turns_is_not_slow() -> None:
    """It has 10 to 60 ms of waiting for cores beside 3 of work."""
    assert "slow-optimizer-step" not in {finding.cause for finding in loaded(lambda _: []).findings}


@given(
    st.lists(st.tuples(*[st.integers(0, 10**9)] * 3), min_size=1, max_size=8),
)
def test_what_is_left_without_waiting_is_at_least_what_ran(numbers: list[tuple[int, int, int]]) -> None:
    """Counters may hold what belongs beside the phase: never more than the phase, never less than it ran."""
    took, ran, starved = np.array(numbers, dtype=np.int64).T[:, None, :]
    cpu = CpuTime(
        running_ns={"forward": ran},
        starved_ns={"forward": starved},
        input_elements=ran,
        process_ns=ran,
        metered=frozenset({"forward"}),
        is_known=True,
        knows_starved=True,
    )
    worked = without_starvation(cpu, "forward", took.astype(float))

    assert (worked <= took).all()
    assert (worked >= np.minimum(ran, took)).all()
    assert (without_starvation(cpu, "other", took.astype(float)) == took).all()


@pytest.mark.parametrize(("late_ms", "is_told"), [(3.0, False), (12.0, True)])
def test_what_ranks_that_share_cores_take_from_each_other_is_chance(*, late_ms: float, is_told: bool) -> None:
    """One rank or the other is late for a time slice now and then; three of them have a reason."""
    trace = tiny(1.0)
    steps: list[list[Parts]] = []
    for rank in range(2):
        own: list[Parts] = []
        for number in range(40):
            late = late_ms if number % 6 == 3 * rank else 0.0
            other = late_ms if number % 6 == 3 * (1 - rank) else 0.0
            own.append(
                [
                    ("data", 0.25),
                    ("forward", 0.35),
                    ("backward", 0.6 + late),
                    ("wait:collective", 1.0 + other),
                    ("optimizer", 0.1),
                ]
            )
        steps.append(own)
    made = make_trace(steps, nbytes=50_000)
    analysis = analyze(replace(made, meta=replace(made.meta, runtime="torch", hosts=trace.meta.hosts)))

    assert bool([finding for finding in analysis.findings if finding.class_ == "straggler"]) == is_told


def test_counters_of_healthy_phases_change_nothing() -> None:
    """Nobody waits for cores: parts are what they were."""
    steps = jittered(uniform(2, 20, HEALTHY))
    facts = analyze(metered(steps, make_trace(steps))).facts

    assert not facts.all_starved
    assert (facts.worked("backward") == facts.part("backward")).all()


def workers_have_cores(share: float) -> Analysis:
    """Rank 1 waits 40 ms a step for its one worker, which works all the time; both ranks wait for cores a third of their time.

    Args:
        share: what processes other than the ranks have of the two cores.
    """
    steps = jittered(uniform(2, STEPS, HEALTHY))
    steps[1] = [[("data", 40.0), *step] for step in steps[1]]
    third: dict[tuple[str, int], Callable[[dict[str, float]], float]] = {
        (f"{phase} {kind}", rank): partial(part_of, phase, of_it)
        for phase in PHASES
        for kind, of_it in (("starved_ns", 0.33), ("cpu_ns", 0.67))
        for rank in range(2)
    }
    trace = metered(steps, make_trace(steps), third)
    told = [(0, "host cpu %", 100.0), (0, "host cores", 2.0)]
    told += [(rank, "process cpu %", 100 - 100 * share) for rank in range(2)]
    rows = [
        (rank, name, int(row.end_ns) - 1, value)
        for row in rows_of(trace)
        for rank, name, value in told
        if row.rank == rank
    ]
    more = dict(zip(COUNTER_COLUMNS, zip(*rows, strict=True), strict=True))
    counters = {name: [*trace.counters[name], *more[name]] for name in more}
    made = [
        (1, "data worker 0", "data worker", "data", DATA_FETCH, int(row.start_ns), int(row.end_ns - row.start_ns))
        for row in rows_of(trace)
        if int(row.rank) == 1
    ]
    return analyze(with_spans(replace(trace, counters=make_table(COUNTER_COLUMNS, counters)), made))


def test_workers_that_have_the_cores_are_not_to_be_more() -> None:
    """What they do has to become less, which gives the cores back."""
    crowded, roomy = workers_have_cores(0.5), workers_have_cores(0.05)
    slow, alone = (best(one, "slow-loader-on-some-ranks") for one in (crowded, roomy))

    assert slow.remedy.startswith("Make the dataset's __getitem__")
    assert alone.remedy.startswith("Raise DataLoader(num_workers=1)")
    assert slow.predicted_gain > alone.predicted_gain + 0.1
    assert "starved-of-cores" not in {step.finding.cause for step in crowded.plan}


def one_rank_starved(waits_ms: Callable[[int, int], float], share: float = 0.1) -> Analysis:
    """Rank and step tell what a rank waits for cores in forward; other processes have a share of the host's."""
    steps = jittered(uniform(2, 64, HEALTHY))
    for rank, own in enumerate(steps):
        steps[rank] = [[*step, ("forward", waits_ms(rank, number))] for number, step in enumerate(own)]
    counters: dict[tuple[str, int], Callable[[dict[str, float]], float]] = {}
    for rank in range(2):
        waited = [waits_ms(rank, number) for number in range(64)]
        ran = [_sum(step, "forward") - late for step, late in zip(steps[rank], waited, strict=True)]
        counters["forward cpu_ns", rank] = _in_order(ran)
        counters["forward starved_ns", rank] = _in_order(waited)
    trace = metered(steps, make_trace(steps), counters)
    told = [(0, "host cpu %", 90.0), (0, "host cores", 2.0), (0, "process cpu %", 90.0 - 200 * share)]
    told.append((1, "process cpu %", 90.0))
    rows = [
        (rank, name, int(row.end_ns) - 1, value)
        for row in rows_of(trace)
        for rank, name, value in told
        if row.rank == rank
    ]
    more = dict(zip(COUNTER_COLUMNS, zip(*rows, strict=True), strict=True))
    counted = {name: [*trace.counters[name], *more[name]] for name in more}
    return analyze(replace(trace, counters=make_table(COUNTER_COLUMNS, counted)))


def by_slices(rank: int, step: int) -> float:
    """Another process on rank 1's core since step 24: in some steps it has it for long, in others not at all."""
    return (0.0, 35.0, 5.0)[step % 3] if rank == 1 and step >= 24 else 0.3


def test_a_rank_whose_core_something_else_has_is_named() -> None:
    """With the steps; what it loses in each of them is no more than a time slice, which by itself is chance."""
    found = one_rank_starved(by_slices).findings
    (slow,) = (one for one in found if one.class_ == "straggler")

    assert (slow.cause, slow.ranks) in {("starved-rank", (1,)), ("periodic-slow-forward", (1,))}
    assert slow.evidence["root_cause"]["is"] == "starved-of-cores"


def test_a_rank_that_lacks_cores_is_promised_all_that_it_waits() -> None:
    """With other processes that have a fifth of two cores, and more than for the part in which it shows most."""
    waits = {"forward": 8.0, "backward": 6.0, "optimizer": 5.0}
    steps = jittered(uniform(2, 64, HEALTHY))
    counters: dict[tuple[str, int], Callable[[dict[str, float]], float]] = {}
    for rank, own in enumerate(steps):
        lost = {part: [ms if rank and number >= 24 else 0.2 for number in range(64)] for part, ms in waits.items()}
        for part, late in lost.items():
            counters[f"{part} cpu_ns", rank] = _in_order([_sum(step, part) for step in own])
            counters[f"{part} starved_ns", rank] = _in_order(late)
        steps[rank] = [
            [*step, *((part, late[number]) for part, late in lost.items())] for number, step in enumerate(own)
        ]
    finding = best(analyze(metered(steps, make_trace(steps), counters)), "starved-rank")

    assert finding.ranks == (1,)
    assert finding.evidence["mean_excess_ns"] == pytest.approx(sum(waits.values()) * MS, rel=0.1)


def test_where_others_have_much_of_the_host_it_is_chance_which_rank_waits() -> None:
    """And with both ranks waiting by turns it is nobody's."""
    busy = one_rank_starved(by_slices, share=0.4)
    in_turn = one_rank_starved(lambda rank, step: 12.0 if (step // 8) % 2 == rank else 0.3)

    for analysis in (busy, in_turn):
        assert "starved-rank" not in {one.cause for one in analysis.findings}
