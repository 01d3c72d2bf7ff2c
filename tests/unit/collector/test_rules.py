"""Each cause, in a trace made to show it and nothing else."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.traces import MS, Parts, make_trace, uniform
from tlkit.collector import Analysis, Finding, analyze
from tlkit.collector.findings import GROUP, all_rules, run_level
from tlkit.collector.findings.uneven import with_even_batches
from tlkit.collector.model.contention import find_contention
from tlkit.collector.model.pattern import find_pattern
from tlkit.collector.model.steps import find_steps
from tlkit.collector.predict.change import Change
from tlkit.timeline.errors import UsageError
from tlkit.timeline.model.trace import COUNTER_COLUMNS, SPAN_COLUMNS, TENSOR_COLUMNS, Trace, make_table
from tlkit.timeline.vocabulary import COMPILATION, EPOCH_START, GARBAGE_COLLECTION, WORKER_START, Category

from .test_diagnosis import HEALTHY, changed, jittered


def of_part(part: str, parts: dict[str, float]) -> float:
    return parts.get(part, 0)


#: What the training thread of a healthy rank gets in its phases: all that it asks for.
METERS: dict[str, Callable[[dict[str, float]], float]] = {
    f"{part} cpu_ns": partial(of_part, part) for part in ("data", "forward", "backward", "optimizer")
}
METERS |= {f"{part} starved_ns": lambda _: 0.0 for part in ("data", "forward", "backward", "optimizer")}


def rows_of(trace: Trace) -> Iterable[Any]:
    """The steps, with numbers as attributes."""
    return trace.steps.itertuples()


def metered(
    steps: list[list[Parts]],
    trace: Trace,
    changes: Mapping[tuple[str, int], Callable[[dict[str, float]], float]] | None = None,
    elements: Callable[[int, int], float] = lambda _rank, _step: 1000.0,
) -> Trace:
    """`trace` of `steps` with the counters of the training threads; `changes` by counter and rank, in ms."""
    rows: dict[str, list[object]] = {name: [] for name in COUNTER_COLUMNS}

    def add(rank: int, name: str, at: int, value: float) -> None:
        for column, item in zip(COUNTER_COLUMNS, (rank, name, at, value), strict=True):
            rows[column].append(item)

    for row in rows_of(trace):
        rank, number = int(row.rank), int(row.step)
        parts: dict[str, float] = {}
        for part, ms in steps[rank][number]:
            parts[part] = parts.get(part, 0) + ms
        for name, meter in METERS.items():
            value = (changes or {}).get((name, rank), meter)(parts)
            add(rank, name, int(row.end_ns) - 1, value * MS)
        add(rank, "input elements", int(row.end_ns) - 1, elements(rank, number))
    return replace(trace, counters=make_table(COUNTER_COLUMNS, rows))


def with_spans(trace: Trace, rows: list[tuple[int, str, str, str, str, int, int]]) -> Trace:
    """`trace` with more spans: rank, lane, lane_kind, category, name, start_ns, dur_ns."""
    columns = list(SPAN_COLUMNS)
    more = {name: [row[number] for row in rows] for number, name in enumerate(columns[:-1])} | {
        "args_row": [-1] * len(rows)
    }
    joined = pd.concat([trace.spans.astype(dict.fromkeys(columns[1:5], "object")), make_table(SPAN_COLUMNS, more)])
    return replace(trace, spans=make_table(SPAN_COLUMNS, {name: joined[name].to_numpy() for name in columns}))


def best(analysis: Analysis, cause: str) -> Finding:
    found = [finding for finding in analysis.findings if finding.cause == cause]
    assert found, [(finding.cause, finding.predicted_gain) for finding in analysis.findings]
    return found[0]


def test_contention_counts_as_a_cost_of_communication() -> None:
    """Backward is starved while collectives run behind it: fewer of them save more than is exposed."""
    parts = HEALTHY | {"wait:collective": 20}
    steps = uniform(2, 30, parts)
    trace = make_trace(steps, nbytes=1000, tensors_per_collective=1)
    hidden = []
    for row in rows_of(trace):
        # Thirty more behind the 60 ms of backward, which begin after data and forward.
        for number in range(30):
            at = int(row.start_ns) + round((31 + number) * MS)
            hidden.append((int(row.rank), "communication", "communication", "collective", "ALLREDUCE", at, MS))
    trace = with_spans(trace, hidden)
    one = trace.collectives
    more = pd.concat(
        [one] + [one.assign(seq=one["seq"] + 1000 * (number + 1), dur_ns=MS) for number in range(30)], ignore_index=True
    )
    trace = replace(trace, collectives=more)
    plain = best(analyze(metered(steps, trace)), "many-small-collectives")
    starved = {("backward starved_ns", rank): lambda _: 25.0 for rank in (0, 1)}
    costly = best(analyze(metered(steps, trace, starved)), "many-small-collectives")

    step_ms = sum(parts.values())
    assert plain.predicted_gain == pytest.approx(20 / step_ms, abs=0.03)
    assert costly.predicted_gain == pytest.approx(45 / step_ms, abs=0.03)
    assert "by taking cores from backward" in costly.sentence


def test_what_travels_as_one_is_agreed_on_as_one() -> None:
    """Ten small collectives of 1 ms, each agreed on in 2: nine times 3 of 45 ms go, and not nine times 1."""
    each: list[tuple[str, float]] = [("forward", 0.5), ("wait:negotiate", 2), ("wait:collective", 1)]
    steps = [[[("data", 0.5), ("forward", 10), *(each * 10), ("optimizer", 2)]] * 30] * 2
    found = best(analyze(make_trace(steps, nbytes=4000)), "many-small-collectives")

    assert found.predicted_gain == pytest.approx(9 * 3 / 47.5, abs=0.08)


def test_cores_that_others_have_are_named_where_all_ranks_lack_them() -> None:
    """A third of every phase is waiting for a core."""
    steps = jittered(uniform(2, 30, HEALTHY))
    starved = {
        (f"{part} starved_ns", rank): lambda parts, part=part: parts.get(part, 0) / 3
        for part in ("forward", "backward", "optimizer")
        for rank in (0, 1)
    }
    analysis = analyze(metered(steps, make_trace(steps), starved))

    assert (analysis.verdict.class_, analysis.verdict.cause) == ("compute", "starved-of-cores")
    assert analysis.verdict.ranks == (0, 1)
    assert 0.2 < analysis.verdict.predicted_gain < 0.4


@pytest.mark.parametrize(
    ("counter", "more_input", "slug", "words"),
    [
        ("backward starved_ns", 1, "starved-of-cores", "a core that something else uses"),
        ("", 1, "blocked", "not computing"),
        ("backward cpu_ns", 1, "slow-processor", "input of the same size"),
        ("backward cpu_ns", 2, "uneven-batches", "2.0 times as large"),
    ],
)
def test_why_a_rank_is_slow(counter: str, more_input: float, slug: str, words: str) -> None:
    """Where its 50 ms more of backward went: waiting for a core, blocked, or computing."""
    steps = jittered(changed(3, 30, [1], backward=50))
    usual = {(f"{part} cpu_ns", 1): lambda parts, part=part: parts[part] for part in ("forward", "optimizer")}
    here = {("backward cpu_ns", 1): lambda parts: parts["backward"] - 50} | usual
    if counter:
        here[counter, 1] = (lambda _: 50.0) if "starved" in counter else (lambda parts: parts["backward"])
    trace = metered(steps, make_trace(steps), here, lambda rank, _: 1000 * (more_input if rank == 1 else 1))
    verdict = analyze(trace).verdict

    assert (verdict.class_, verdict.ranks) == ("straggler", (1,))
    assert verdict.evidence["root_cause"]["is"] == slug
    assert verdict.cause == ("uneven-batches" if slug == "uneven-batches" else "slow-backward")
    assert words in verdict.sentence


def with_clocks(trace: Trace, clock_of_slow: float, others: float, *, noted: float) -> Trace:
    """Counters of the devices of three ranks, of which rank 1 is slow; all of them note a reason for their clocks."""
    rows = [
        row
        for rank in range(3)
        for second in range(4)
        for row in (
            (rank, "gpu sm clock MHz", second * 10**9, clock_of_slow if rank == 1 else others),
            (rank, "gpu throttled", second * 10**9, noted),
        )
    ]
    columns = {name: [row[number] for row in rows] for number, name in enumerate(COUNTER_COLUMNS)}
    return replace(trace, counters=make_table(COUNTER_COLUMNS, columns))


def test_a_device_at_the_clock_of_the_others_is_not_to_blame() -> None:
    """Whatever reason it notes for its clock: at its power cap every busy device has one."""
    steps = jittered(changed(3, 30, [1], backward=50))
    verdict = analyze(with_clocks(make_trace(steps), 1755.0, 1755.0, noted=1.0)).verdict

    assert (verdict.class_, verdict.ranks) == ("straggler", (1,))
    assert "MHz" not in verdict.sentence
    assert verdict.evidence.get("root_cause", {}).get("is") != "throttled-device"


def test_a_device_that_runs_slower_than_the_others_is_why_its_rank_is_slow() -> None:
    """By its clock, whatever its processor did."""
    steps = jittered(changed(3, 30, [1], backward=50))
    verdict = analyze(with_clocks(make_trace(steps), 900.0, 1400.0, noted=0.0)).verdict

    assert (verdict.class_, verdict.ranks) == ("straggler", (1,))
    assert verdict.evidence["root_cause"]["is"] == "throttled-device"
    assert "900 MHz, the others' at 1400" in verdict.sentence


def test_batches_that_differ_from_step_to_step_make_every_rank_wait() -> None:
    """Work in proportion to an input that is drawn anew each time; nobody is the straggler."""
    random = np.random.default_rng(1)
    sizes = random.uniform(0.5, 1.5, (4, 40))
    steps: list[list[Parts]] = [
        [
            [(part, ms * (sizes[rank, k] if part in {"forward", "backward"} else 1)) for part, ms in HEALTHY.items()]
            for k in range(40)
        ]
        for rank in range(4)
    ]
    steps = jittered(steps)
    trace = metered(steps, make_trace(steps), elements=lambda rank, step: 1000 * sizes[rank, step])
    finding = best(analyze(trace), "uneven-batches")

    expected = 90 * (sizes.max(axis=0) - sizes.mean(axis=0)).mean() / analyze(trace).facts.mean_step_ns * MS
    assert finding.ranks == (0, 1, 2, 3)
    assert finding.predicted_gain == pytest.approx(expected, abs=0.03)


def test_even_batches_do_not_take_away_what_another_fault_costs() -> None:
    """Work grows with the square of the input; one rank is blocked besides, now and then."""
    random = np.random.default_rng(1)
    sizes = random.uniform(500, 1500, (4, 60))
    usual = 1e-3 * sizes**2
    blocked = np.zeros(usual.shape)
    blocked[2, 5::6] = 4 * usual.mean()
    factor = with_even_batches(sizes, usual + blocked)

    assert np.allclose(usual * factor, usual.mean(axis=0), rtol=0.02)
    assert (blocked * factor)[2, 5::6].mean() > 2 * usual.mean()
    assert (with_even_batches(sizes, np.zeros(usual.shape)) == 1).all()


def test_an_optimizer_that_is_slower_than_memory_is_named() -> None:
    """40 ms for 4 MB; what a pass over them takes is not promised."""
    verdict = analyze(make_trace(jittered(changed(2, 30, [0, 1], optimizer=40)))).verdict

    assert (verdict.class_, verdict.cause, verdict.ranks) == ("compute", "slow-optimizer-step", (0, 1))
    assert 0.2 < verdict.predicted_gain < 0.3


@pytest.mark.parametrize(("mbytes", "words"), [(1, "an ordinary update would take"), (20, "one pass over 20.0 MB")])
def test_what_an_update_should_take_is_a_pass_over_its_bytes_or_an_ordinary_share(mbytes: int, words: str) -> None:
    """A pass over a megabyte takes less than 6 % of the rest of the step, which every update may take; then it may gain more."""
    trace = make_trace(jittered(changed(2, 30, [0, 1], optimizer=80)))
    count = len(trace.collectives) // (2 * 30)
    verdict = analyze(replace(trace, collectives=trace.collectives.assign(nbytes=mbytes * 1_000_000 // count))).verdict
    low, high = verdict.gain_interval
    gain = verdict.predicted_gain

    assert verdict.cause == "slow-optimizer-step"
    assert words in verdict.sentence
    assert (high - gain > 1.1 * (gain - low)) == (mbytes == 1)


def test_copies_that_nothing_hides_are_named() -> None:
    """20 ms in every step of both ranks."""
    steps = uniform(2, 30, {"data": 0.5, "h2d": 20, **{part: ms for part, ms in HEALTHY.items() if part != "data"}})
    verdict = analyze(make_trace(jittered(steps))).verdict

    assert (verdict.class_, verdict.cause) == ("data", "slow-copies-to-device")
    assert verdict.predicted_gain == pytest.approx(20 / 117.5, abs=0.02)


def test_garbage_collection_is_named_with_its_pauses() -> None:
    """Every fourth step stops for 100 ms in the loop."""
    steps = changed(2, 40, [0, 1], every=4, host=100)
    trace = make_trace(steps)
    pauses = [
        (int(row.rank), "compute", "compute", "other", GARBAGE_COLLECTION, int(row.end_ns) - 101 * MS, 100 * MS)
        for row in rows_of(trace)
        if row.step % 4 == 0
    ]
    verdict = analyze(with_spans(trace, pauses)).verdict

    assert (verdict.class_, verdict.cause) == ("compute", "garbage-collection")
    assert verdict.predicted_gain == pytest.approx(25 / (97.5 + 25), abs=0.02)


@pytest.mark.parametrize("ranks", [[0, 1], [1]])
def test_functions_that_are_compiled_again_are_named(ranks: list[int]) -> None:
    """In every fourth step, 100 ms of forward; once in the run is nothing to speak of."""
    steps = changed(2, 40, ranks, every=4, forward=100)
    trace = make_trace(steps)
    forward = trace.spans[(trace.spans["category"] == "forward") & (trace.spans["dur_ns"] > 100 * MS)]
    spans = [
        (int(rank), "other", "other", "other", COMPILATION, int(start_ns) + 1, 100 * MS)
        for rank, start_ns in zip(forward["rank"], forward["start_ns"], strict=True)
    ]
    verdict = analyze(with_spans(trace, spans)).verdict
    once = analyze(with_spans(trace, spans[-1:]))

    assert (verdict.class_, verdict.cause) == ("compute" if len(ranks) == 2 else "straggler", "compiled-again")
    assert verdict.ranks == tuple(ranks)
    assert verdict.predicted_gain == pytest.approx(25 / (97.5 + 25), abs=0.02)
    assert "compiled-again" not in {finding.cause for finding in once.findings}


def test_a_function_that_is_called_first_in_the_third_step_is_warm_up() -> None:
    """As the second network's of two that are trained by turns; a slow step without it, or far later, is not."""
    steps = uniform(2, 40, HEALTHY)
    for rank in range(2):
        for number in (3, 20):
            steps[rank][number] = [*steps[rank][number], ("forward", 300.0)]
    trace = make_trace(steps)
    forward = trace.spans[trace.spans["dur_ns"] == 300 * MS]
    spans = [
        (int(rank), "other", "other", "other", COMPILATION, int(start_ns) + 1, 100 * MS)
        for rank, start_ns in zip(forward["rank"], forward["start_ns"], strict=True)
    ]
    assert find_steps(trace).excluded == 1
    assert find_steps(with_spans(trace, spans)).excluded == 4


@pytest.mark.parametrize(("slow_steps", "is_told"), [([20], False), ([7, 20, 33], True)])
def test_one_slow_step_of_one_rank_is_no_straggler(slow_steps: list[int], *, is_told: bool) -> None:
    """A second is a fifth of this run, and nobody can tell whether it will be lost again."""
    steps = jittered(uniform(2, 40, HEALTHY))
    for number in slow_steps:
        steps[1][number] = [*steps[1][number], ("host", 1000)]
    found = {finding.class_ for finding in analyze(make_trace(steps)).findings}

    assert ("straggler" in found) == is_told


def test_workers_that_start_anew_are_named() -> None:
    """Every tenth step begins with 200 ms in which the loader starts its workers."""
    steps = changed(2, 40, [0, 1], every=10, data=200)
    trace = make_trace(steps)
    starts = [
        (int(row.rank), "data loading", "data loading", "data", WORKER_START, int(row.start_ns) + 1, 100 * MS)
        for row in rows_of(trace)
        if row.step % 10 == 0
    ]
    verdict = analyze(with_spans(trace, starts)).verdict

    assert (verdict.class_, verdict.cause) == ("data", "worker-start-up")
    assert "persistent_workers" in verdict.remedy


def test_epochs_that_take_long_to_begin_with_are_named() -> None:
    """Every tenth step begins with 100 ms of the sampler's; the loader that keeps up is not told instead."""
    steps = changed(2, 40, [0, 1], every=10, data=100)
    trace = make_trace(steps)
    starts = [
        (int(row.rank), "data loading", "data loading", "data", EPOCH_START, int(row.start_ns) + 1, 95 * MS)
        for row in rows_of(trace)
        if row.step % 10 == 0
    ]
    analysis = analyze(with_spans(trace, starts))

    assert (analysis.verdict.class_, analysis.verdict.cause, analysis.verdict.ranks) == ("data", "epoch-start", (0, 1))
    # The first of the four is in a step that is left out as warm-up.
    assert analysis.verdict.predicted_gain == pytest.approx(3 / 39 * 95 * MS / analysis.facts.mean_step_ns, abs=0.01)


def test_what_is_slow_in_all_but_a_few_steps_does_not_become_slower() -> None:
    """Nothing grows where nine steps of ten are as slow as each other."""
    facts = analyze(make_trace(jittered(uniform(2, 60, HEALTHY)))).facts
    excess = np.where(np.arange(facts.steps.count) % 10 == 4, 0.0, 10.0 * MS)
    pattern = find_pattern(excess, facts.steps.numbers)
    finding = run_level._describe(facts, excess, pattern, facts.outcome(Change()))

    assert (finding.cause, finding.evidence["pattern"]) == ("slow-stretch", "always")
    assert "slower in all but a few steps on all ranks" in finding.sentence
    assert "piles up" not in finding.remedy


def test_steps_that_become_a_little_slower_are_a_trend_too() -> None:
    """A fifth of a millisecond more each step, of 100: no step is much longer than the usual ones."""
    steps = jittered(uniform(2, 60, HEALTHY))
    for rank in steps:
        for number, parts in enumerate(rank):
            rank[number] = [(part, ms + (number / 5 if part == "forward" else 0)) for part, ms in parts]
    finding = best(analyze(make_trace(steps)), "slowing-down")

    assert finding.evidence["part"] == "forward"
    assert finding.predicted_gain == pytest.approx(6 / 103, abs=0.015)
    assert not [f for f in analyze(make_trace(jittered(uniform(2, 60, HEALTHY)))).findings if f.cause == "slowing-down"]


def test_steps_that_become_slower_are_a_trend_and_a_single_bump_is_none() -> None:
    """One millisecond more each step, of 100: thirty on average, counted from the first step on."""
    steps = jittered(uniform(2, 60, HEALTHY))
    for rank in steps:
        for number, parts in enumerate(rank):
            rank[number] = [(part, ms + (number if part == "forward" else 0)) for part, ms in parts]
    finding = best(analyze(make_trace(steps)), "slowing-down")
    bumped = jittered(uniform(2, 60, HEALTHY))
    for rank in bumped:
        for number in range(30, 36):
            rank[number] = [(part, ms * 1.4) for part, ms in rank[number]]

    assert finding.evidence["part"] == "forward"
    assert finding.predicted_gain == pytest.approx(29 / 127, abs=0.02)
    assert not [f for f in analyze(make_trace(bumped)).findings if f.cause == "slowing-down"]


@pytest.mark.parametrize(("larger", "expected"), [(1.0, {"slow-stretch"}), (1.8, set())])
def test_steps_with_larger_inputs_are_not_slow(larger: float, expected: set[str]) -> None:
    """All ranks take 1.6 times as long in the second half of the run: with the same input, and with larger images."""
    slow = HEALTHY | {"forward": 1.6 * HEALTHY["forward"], "backward": 1.6 * HEALTHY["backward"]}
    steps = uniform(2, 30, HEALTHY)
    for rank, after in enumerate(uniform(2, 30, slow)):
        steps[rank] += after
    sizes = lambda _, step: 1000.0 * (larger if step >= 30 else 1)  # noqa: E731
    found = {finding.cause for finding in analyze(metered(steps, make_trace(steps), elements=sizes)).findings}

    assert found & {"slow-stretch", "outlier-steps", "slowing-down"} == expected


@pytest.mark.parametrize(
    ("longer", "cause"),
    [
        ({"forward": 1.3, "backward": 1.4, "optimizer": 1.35, "host": 1.25}, "slower-cores"),
        ({"forward": 1.3, "backward": 1.4}, "slow-stretch"),  # larger images would do that
        ({"host": 8.0}, "slow-stretch"),
    ],
)
def test_a_stretch_in_which_everything_is_slower(longer: dict[str, float], cause: str) -> None:
    """By about the same share: the cores are, not what the script does."""
    parts = HEALTHY | {"optimizer": 8, "host": 6}
    slow = {part: ms * longer.get(part, 1.0) for part, ms in parts.items()}
    steps = jittered(
        [
            [*first[:25], *between, *first[25:]]
            for first, between in zip(uniform(2, 50, parts), uniform(2, 30, slow), strict=True)
        ]
    )
    finding = best(analyze(metered(steps, make_trace(steps))), cause)

    assert finding.class_ == "compute"
    assert finding.evidence["steps"][0] == pytest.approx(25, abs=1)


def test_the_larger_inputs_of_steps_that_stall_are_no_part_of_what_that_gains() -> None:
    """Three stalls of 120 ms, all in steps with larger images: only the stalls can be removed."""
    slow = HEALTHY | {"forward": 1.6 * HEALTHY["forward"], "backward": 1.6 * HEALTHY["backward"]}
    steps = uniform(2, 30, HEALTHY)
    for rank, after in enumerate(uniform(2, 30, slow)):
        steps[rank] += after
        for number in (31, 46, 52):
            steps[rank][number] = [(part, ms + 120 * (part == "forward")) for part, ms in steps[rank][number]]
    sizes = lambda _, step: 1000.0 * (1.8 if step >= 30 else 1)  # noqa: E731
    analysis = analyze(metered(steps, make_trace(steps), elements=sizes))
    finding = best(analysis, "outlier-steps")

    assert finding.predicted_gain == pytest.approx(3 * 120 * MS / analysis.facts.steps.job_ns.sum(), abs=0.005)


@pytest.mark.parametrize(
    ("numbers", "cause"), [(range(5, 60, 10), "periodic-stalls"), ((7, 11, 40, 52), "outlier-steps")]
)
def test_stalls_are_told_with_their_rhythm(numbers: list[int], cause: str) -> None:
    """300 ms of forward in some steps of all ranks."""
    steps = jittered(uniform(2, 60, HEALTHY))
    for rank in steps:
        for number in numbers:
            rank[number] = [(part, ms + (300 if part == "forward" else 0)) for part, ms in rank[number]]
    finding = best(analyze(make_trace(steps)), cause)

    assert finding.evidence["part"] == "forward"
    assert finding.evidence["stalls"] == len(list(numbers))


def tensors_of(trace: Trace, described: list[tuple[str, int, float]]) -> Trace:
    """`trace` with tensors: name, bytes, and when they are submitted (ms from the beginning of the step)."""
    rows: dict[str, list[object]] = {name: [] for name in TENSOR_COLUMNS}
    for row in rows_of(trace):
        for name, nbytes, at in described:
            asked = int(row.start_ns) + round(at * MS)
            values = (row.rank, 0, row.step, name, "allreduce", nbytes, asked, asked, asked, asked, "")
            for column, value in zip(TENSOR_COLUMNS, values, strict=True):
                rows[column].append(value)
    return replace(trace, tensors=make_table(TENSOR_COLUMNS, rows))


def test_one_tensor_that_outweighs_all_others_is_named_with_all_that_it_costs() -> None:
    """40 of 40.1 MB: its transfer, its part of the update, and the 20 ms of backward before it is ready."""
    steps = jittered(uniform(2, 30, HEALTHY | {"wait:collective": 30, "optimizer": 20}))
    trace = make_trace(steps, nbytes=40_100_000)
    # Backward begins about 30.5 ms into the step.
    finding = best(
        analyze(tensors_of(trace, [("allreduce.a", 100_000, 35), ("allreduce.huge", 40_000_000, 55)])),
        "oversize-gradient",
    )

    assert finding.evidence["tensor"] == "allreduce.huge"
    assert finding.predicted_gain == pytest.approx((30 + 20 + 20) / 145, abs=0.05)


def test_what_a_large_gradient_takes_to_compute_is_counted_as_far_as_its_bytes_explain_it() -> None:
    """Twice what it takes to reduce and to apply it; of more than that a hook is the reason, or the layer."""
    parts = HEALTHY | {"wait:collective": 10, "optimizer": 5, "backward": 100}
    trace = make_trace(jittered(uniform(2, 30, parts)), nbytes=40_100_000)
    finding = best(
        analyze(tensors_of(trace, [("allreduce.a", 100_000, 35), ("allreduce.huge", 40_000_000, 125)])),
        "oversize-gradient",
    )

    assert finding.evidence["gradient_made_in_ns"] == pytest.approx(90 * MS, rel=0.05)
    assert finding.predicted_gain == pytest.approx((10 + 5 + 2 * 15) / sum(parts.values()), abs=0.05)
    assert "hooks" in finding.sentence


def test_what_one_rank_takes_longer_for_is_not_the_gradients() -> None:
    """A hook on rank 1 keeps the largest gradient 70 ms longer than on rank 0: that rank is slow."""
    parts = HEALTHY | {"wait:collective": 20, "optimizer": 10}
    steps = uniform(2, 30, parts)
    steps[1] = [list((parts | {"backward": 130}).items()) for _ in steps[1]]
    trace = make_trace(jittered(steps), nbytes=40_100_000)
    tables = [
        tensors_of(trace, [("allreduce.a", 100_000, 35), ("allreduce.huge", 40_000_000, at)]).tensors
        for at in (55, 125)
    ]
    both = pd.concat([table[table["rank"] == rank] for rank, table in enumerate(tables)], ignore_index=True)
    analysis = analyze(replace(trace, tensors=both))

    assert (analysis.verdict.cause, analysis.verdict.ranks) == ("slow-backward", (1,))
    assert best(analysis, "oversize-gradient").evidence["gradient_made_in_ns"] == pytest.approx(20 * MS, rel=0.05)


def test_gradients_that_come_last_cannot_hide() -> None:
    """All bytes are ready at the end of backward, and 30 ms of transfers follow."""
    steps = jittered(uniform(2, 30, HEALTHY | {"wait:collective": 30}))
    trace = make_trace(steps, nbytes=40_000_000)
    late = analyze(tensors_of(trace, [(f"allreduce.{k}", 4_000_000, 86 + k / 10) for k in range(10)]))
    early = analyze(tensors_of(trace, [(f"allreduce.{k}", 4_000_000, 40 + k) for k in range(10)]))

    assert best(late, "late-gradients").predicted_gain == pytest.approx(15 / 127, abs=0.03)
    assert not [finding for finding in early.findings if finding.cause == "late-gradients"]


def test_gradients_that_are_reduced_only_after_backward_are_told_as_that() -> None:
    """Backward ends 90.5 ms into the step: all are submitted then, whatever their size, and the remedy is another one."""
    steps = uniform(2, 30, HEALTHY | {"wait:collective": 30})
    trace = make_trace(steps, nbytes=40_000_000)
    analysis = analyze(tensors_of(trace, [(f"allreduce.{k}", 4_000_000, 91 + k / 100) for k in range(10)]))

    finding = best(analysis, "no-overlap")
    assert finding.evidence["early_tensors_share"] == 0
    assert "DistributedOptimizer does it during backward" in finding.remedy
    assert not [other for other in analysis.findings if other.cause == "late-gradients"]


@pytest.mark.parametrize(
    ("framework", "words"),
    [
        ("tensorflow", "hvd.DistributedGradientTape(tape, groups=4)"),
        ("keras", "hvd.DistributedOptimizer(optimizer, groups=4)"),
    ],
)
def test_without_overlap_tensorflow_is_told_of_groups(framework: str, words: str) -> None:
    """In its own words; but nothing where the gradients make one group."""

    def run(nbytes: int) -> Analysis:
        steps = uniform(2, 30, HEALTHY | {"wait:collective": 30})
        trace = make_trace(steps, nbytes=nbytes)
        trace = tensors_of(trace, [(f"allreduce.{k}", nbytes // 10, 91 + k / 100) for k in range(10)])
        return analyze(replace(trace, meta=replace(trace.meta, framework=framework)))

    finding = best(run(40_000_000), "no-overlap")
    assert words in finding.remedy
    assert "allreduce after" not in finding.remedy
    assert not [other for other in run(1_500_000).findings if other.cause == "no-overlap"]


def test_a_large_tensor_that_is_submitted_after_backward_is_not_what_backward_computed() -> None:
    """When nothing is submitted before the end, the time up to the first tensor is the whole of backward."""
    steps = uniform(2, 30, HEALTHY | {"wait:collective": 30})
    trace = make_trace(steps, nbytes=40_100_000)
    described = [("allreduce.huge", 40_000_000, 91.0), ("allreduce.a", 100_000, 91.1)]
    finding = best(analyze(tensors_of(trace, described)), "oversize-gradient")

    assert finding.evidence["gradient_made_in_ns"] == 0


def test_steps_that_are_slow_because_the_run_has_just_begun_are_no_stalls() -> None:
    """1.4 times as long in the first four of 30; in the middle of the run they are."""
    slow = {number: HEALTHY | {"backward": 110} for number in range(4)}

    def causes(first: int) -> set[str]:
        steps = uniform(2, 30, HEALTHY)
        for rank in steps:
            for number, parts in slow.items():
                rank[first + number] = list(parts.items())
        return {finding.cause for finding in analyze(make_trace(jittered(steps))).findings}

    assert not causes(0) & {"outlier-steps", "slow-stretch"}
    assert causes(12) & {"outlier-steps", "slow-stretch"}


@pytest.mark.parametrize(("others_starved", "is_named"), [(0.0, True), (6.0, False)])
def test_a_rank_that_alone_lacks_cores_is_named_whatever_the_host_does(
    *, others_starved: float, is_named: bool
) -> None:
    """12 of 100 ms on rank 1, which runs as much as the other: where both wait for cores, other load disturbs whom it will."""
    steps = jittered(changed(2, 30, [1], forward=6, backward=6))
    lacking = {("forward starved_ns", 1): lambda _: 6.0 + others_starved, ("backward starved_ns", 1): lambda _: 6.0}
    lacking |= {
        ("forward cpu_ns", 1): lambda parts: parts["forward"] - 6 - others_starved,
        ("backward cpu_ns", 1): lambda parts: parts["backward"] - 6,
    }
    lacking |= {("forward starved_ns", 0): lambda _: others_starved}
    lacking |= {("forward cpu_ns", 0): lambda parts: parts["forward"] - others_starved}
    found = [
        finding
        for finding in analyze(metered(steps, make_trace(steps), lacking)).findings
        if finding.class_ == "straggler"
    ]

    assert bool(found) == is_named


def test_a_rank_that_computes_more_on_a_loaded_host_is_not_told_to_lack_cores() -> None:
    """Both ranks wait four times as long as they run; rank 1 has 10 ms more to compute, which takes it 50."""
    steps = jittered(changed(2, 30, [1], forward=50))
    phases = ("forward", "backward", "optimizer")
    shared = {(f"{part} starved_ns", rank): partial(part_of, part, 0.8) for part in phases for rank in (0, 1)}
    shared |= {(f"{part} cpu_ns", rank): partial(part_of, part, 0.2) for part in phases for rank in (0, 1)}
    found = best(analyze(metered(steps, make_trace(steps), shared)), "slow-forward")

    assert found.ranks == (1,)
    assert found.evidence["root_cause"]["is"] == "slow-processor"


def test_how_long_a_rank_stands_still_is_told_of_the_steps_that_are_counted() -> None:
    """Two seconds in three steps, and 40 ms in a few others, which the sentence does not count; in one step nobody would know."""
    steps = uniform(2, 60, HEALTHY)
    for number in (5, 17, 23, 48):
        steps[1][number] = [*steps[1][number], ("forward", 40)]
    for number in (8, 12, 55):
        steps[1][number] = [*steps[1][number], ("forward", 2000)]
    found = best(analyze(make_trace(jittered(steps))), "periodic-slow-forward")

    assert "in 3 of 59 steps" in found.sentence  # the first is left out
    assert found.evidence["mean_excess_ns"] == pytest.approx(2000 * MS, rel=0.05)
    for number in (8, 55):
        steps[1][number] = list(steps[1][number])[:-1]
    assert not analyze(make_trace(jittered(steps))).findings


@pytest.mark.parametrize("is_input", [True, False])
def test_steps_that_grow_with_their_input_are_not_slowing_down(*, is_input: bool) -> None:
    """Sentences become longer, and so does the work on them."""
    steps = jittered(uniform(2, 60, HEALTHY))
    for number in range(60):
        for rank in range(2):
            steps[rank][number] = [*steps[rank][number], ("forward", number / 2 + 1), ("backward", number + 1)]
    trace = make_trace(steps)
    trace = metered(steps, trace, elements=lambda _, step: 1000.0 * (1 + step / 60 * is_input))
    assert ("slowing-down" in {finding.cause for finding in analyze(trace).findings}) is not is_input


def test_a_rank_that_does_more_in_two_parts_of_the_same_steps_has_one_fault() -> None:
    """A picture in every third step, made by the model and compressed: what goes is both."""
    steps = jittered(uniform(2, 60, HEALTHY))
    for number in range(0, 60, 3):
        steps[0][number] = [*steps[0][number], ("host", 200), ("forward", 60)]
    analysis = analyze(make_trace(steps))
    found = best(analysis, "periodic-slow-host-code")

    assert found.evidence["mean_excess_ns"] == pytest.approx(260 * MS, rel=0.05)
    assert found.predicted_gain == pytest.approx(260 / 3 / (analysis.facts.mean_step_ns / MS), abs=0.03)
    assert "most of it in code outside" in found.sentence


def part_of(part: str, share: float, parts: dict[str, float]) -> float:
    return share * parts.get(part, 0)


def with_hosts(trace: Trace, *names: str) -> Trace:
    return replace(trace, meta=replace(trace.meta, hosts=dict(enumerate(names))))


def test_a_link_slower_than_a_gigabit_is_named_with_its_hosts() -> None:
    """4 MB in 300 ms."""
    trace = with_hosts(make_trace(jittered(uniform(2, 30, HEALTHY | {"wait:collective": 300}))), "a", "b")
    verdict = analyze(trace).verdict

    assert (verdict.class_, verdict.cause) == ("communication", "slow-link")
    assert "a, b" in verdict.sentence
    assert verdict.predicted_gain == pytest.approx(290 / 395, abs=0.03)


@pytest.mark.parametrize(("hosts", "is_found"), [(("a", "a"), True), (("a", "b"), False), ((), False)])
def test_gloo_on_one_host_is_compared_with_shared_memory(hosts: tuple[str, ...], is_found: bool) -> None:
    """20 ms for 10 MB are 5 through shared memory; between hosts, or where they are unknown, nothing is claimed."""
    trace = with_hosts(
        make_trace(jittered(uniform(2, 30, HEALTHY | {"wait:collective": 20})), nbytes=10_000_000), *hosts
    )
    found = [finding for finding in analyze(trace).findings if finding.cause == "wrong-backend"]

    assert bool(found) == is_found
    if found:
        assert found[0].predicted_gain == pytest.approx(15 / 115, abs=0.02)


def test_another_transport_gains_no_more_than_the_quickest_transfers_would() -> None:
    """Three ranks on two cores: 2.4 ms at best, 8 where a rank has no core; no transport makes a core."""
    draws = np.random.default_rng(3)
    steps: list[list[Parts]] = [[] for _ in range(3)]
    for number in range(40):
        took = 2.4 if number % 5 == 0 else 8.0
        for own in steps:
            own.append(
                [
                    ("forward", 4 * draws.uniform(0.99, 1.01)),
                    ("backward", 5),
                    ("optimizer", 1),
                    ("wait:collective", took),
                ]
            )
    trace = with_hosts(make_trace(steps, nbytes=100_000), "a", "a", "a")
    analysis = analyze(trace)
    found = [finding for finding in analysis.findings if finding.cause == "wrong-backend"]

    assert found
    assert found[0].predicted_gain * analysis.facts.mean_step_ns < 2.4 * MS


def test_what_ranks_lack_while_no_bytes_move_is_no_contention() -> None:
    """8 ms of backward without a core while a collective runs, 5 of which it waits for the other rank."""
    steps = jittered(uniform(2, 30, HEALTHY | {"wait:collective": 8}))
    lacking = {("backward starved_ns", rank): lambda _: 8.0 for rank in (0, 1)}
    facts = analyze(metered(steps, make_trace(steps), lacking)).facts
    hidden = replace(facts.breakdown, hidden_ns=np.full(facts.breakdown.hidden_ns.shape, 8 * MS))
    collectives = facts.collectives.assign(wait_ns=5 * MS, transfer_ns=3 * MS)
    contention = find_contention(facts.trace, facts.steps, hidden, facts.cpu, collectives)

    assert contention.mean() == pytest.approx(3 * MS, rel=0.05)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_cost_the_same_whether_they_can_be_halved_or_not(dtype: str) -> None:
    """Gradients in half precision cannot be made narrower, but reduced half as often."""
    trace = make_trace(jittered(uniform(2, 30, HEALTHY | {"wait:collective": 60})), nbytes=10_000_000)
    trace = replace(trace, collectives=trace.collectives.assign(dtype=pd.Categorical([dtype] * len(trace.collectives))))
    found = best(analyze(trace), "bandwidth-bound")

    assert found.predicted_gain == pytest.approx(30 / 155, abs=0.03)
    assert ("half the bytes" in found.remedy) == (dtype == "float32")
    assert ("half as often" in found.remedy) == (dtype == "bfloat16")


@pytest.mark.parametrize(
    ("wait_ms", "hosts", "class_"), [(22, "aa", "healthy"), (22, "ab", "communication"), (60, "aa", "communication")]
)
def test_much_communication_of_a_healthy_run(wait_ms: float, hosts: str, class_: str) -> None:
    """On one host nothing is wrong with it, and the sentence tells what there is to gain; a network may be slow."""
    trace = make_trace(jittered(uniform(2, 30, HEALTHY | {"wait:collective": wait_ms})), nbytes=10_000_000)
    analysis = analyze(replace(trace, meta=replace(trace.meta, hosts=dict(enumerate(hosts)), runtime="torch")))
    verdict = analysis.verdict

    assert verdict.class_ == class_
    assert ("With half of what is sent, or what hides it, 9% of the step would go." in verdict.sentence) == (
        class_ == "healthy"
    )
    assert bool(analysis.plan) == any(one.predicted_gain > 0.05 for one in analysis.findings) == (class_ != "healthy")


def test_sizes_that_a_profile_does_not_tell_are_asked_for() -> None:
    """The cost is known, the cure is not."""
    verdict = analyze(make_trace(jittered(uniform(2, 30, HEALTHY | {"wait:collective": 40})), nbytes=-1)).verdict

    assert (verdict.class_, verdict.cause) == ("communication", "exposed-communication")
    assert "record_shapes" in verdict.remedy


def test_rules_of_other_packages_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point names a class; one that cannot be loaded is a clear error."""

    class Entry:
        name, value = "mine", "package:Rule"

        def __init__(self, rule: object) -> None:
            self.rule = rule

        def load(self) -> object:
            if isinstance(self.rule, Exception):
                raise self.rule
            return self.rule

    class Always:
        def find(self, facts: object) -> list[Finding]:
            del facts
            return [
                Finding(
                    class_="compute", cause="moon", ranks=(0,), predicted_gain=0.9, gain_interval=(0.9, 0.9),
                    confidence=1.0, remedy="", sentence="It is the moon.",
                )
            ]  # fmt: skip

    for entry in (Entry(Always), Entry(ImportError("no such thing"))):
        all_rules.cache_clear()
        monkeypatch.setattr(
            "tlkit.collector.findings.entry_points", lambda group, entry=entry: [entry] if group == GROUP else []
        )
        if entry.rule is Always:
            assert analyze(make_trace(uniform(2, 10, HEALTHY))).verdict.cause == "moon"
        else:
            with pytest.raises(UsageError, match=r"the rule mine .* cannot be loaded: no such thing"):
                analyze(make_trace(uniform(2, 10, HEALTHY)))
    monkeypatch.undo()
    all_rules.cache_clear()


def test_a_healthy_run_with_all_its_counters_stays_healthy() -> None:
    """Nothing is promised to it beyond five per cent."""
    steps = jittered(uniform(4, 40, HEALTHY))
    analysis = analyze(with_hosts(metered(steps, make_trace(steps)), "a", "a", "a", "a"))

    assert analysis.verdict.class_ == "healthy"
    assert max((finding.predicted_gain for finding in analysis.findings), default=0) < 0.05
    assert Category.FORWARD in analysis.trace.meta.known_categories


def as_ddp(trace: Trace, largest: tuple[str, int, int]) -> Trace:
    """`trace` as if torch.distributed had run it: without tensors, with the model's largest gradient."""
    return replace(trace, meta=replace(trace.meta, runtime="torch", largest_gradient=largest))


def test_the_largest_gradient_of_a_ddp_model_is_named() -> None:
    """Its bucket holds 40 of 40.1 MB; what it costs is its transfer, its part of the update, and making it."""
    steps = jittered(uniform(2, 30, HEALTHY | {"wait:collective": 30, "optimizer": 20}))
    trace = as_ddp(make_trace(steps, nbytes=40_100_000), ("head.weight", 40_000_000, 40_100_000))
    finding = best(analyze(trace), "oversize-gradient")

    assert finding.evidence["tensor"] == "head.weight"
    assert finding.predicted_gain > 0.3


def test_a_bucket_of_many_tensors_is_no_oversize_gradient() -> None:
    """The largest is a tenth of it."""
    steps = jittered(uniform(2, 30, HEALTHY | {"wait:collective": 30}))
    trace = as_ddp(make_trace(steps, nbytes=40_000_000), ("head.weight", 4_500_000, 40_000_000))

    assert not [finding for finding in analyze(trace).findings if finding.cause == "oversize-gradient"]


def test_remedies_speak_of_what_runs() -> None:
    """DDP has no fusion threshold, and Horovod no buckets."""
    steps = jittered(uniform(2, 30, HEALTHY | {"wait:collective": 40}))
    for nbytes in (40_000_000, 1_000):
        of_horovod = make_trace(steps, nbytes=nbytes)
        of_torch = replace(of_horovod, meta=replace(of_horovod.meta, runtime="torch"))
        said = [" ".join(finding.remedy for finding in analyze(trace).findings) for trace in (of_horovod, of_torch)]
        assert "HOROVOD_" not in said[1]
        assert "DistributedOptimizer" not in said[1]
        assert "no_sync" not in said[0]


def test_copies_out_of_buckets_are_told_apart() -> None:
    """10 of about 130 ms, in a DDP run only; not where so few bytes are there to copy that the thread waits for a core."""
    steps = jittered(uniform(2, 30, HEALTHY | {"wait:collective": 10, "wait:fusion": 10}))
    trace = make_trace(steps, nbytes=40_000_000)
    of_torch = replace(trace, meta=replace(trace.meta, runtime="torch"))
    small = make_trace(steps, nbytes=40_000)
    small = replace(small, meta=replace(small.meta, runtime="torch"))

    assert best(analyze(of_torch), "bucket-copies").predicted_gain == pytest.approx(0.08, abs=0.02)
    for other in (trace, small):
        assert not [finding for finding in analyze(other).findings if finding.cause == "bucket-copies"]


#: A step of a tiny model under DistributedDataParallel on one host, as two ranks on two cores measured it.
TINY = {"data": 0.25, "forward": 0.35, "backward": 0.6, "optimizer": 0.1}


def tiny(collective_ms: float, *, late_ms: float = 0.0) -> Trace:
    """Forty steps; each fifth collective takes `late_ms` longer."""
    parts = TINY | {"wait:fusion": 0.15}
    steps: list[list[Parts]] = []
    for _ in range(2):
        own: list[Parts] = []
        for number in range(40):
            took = collective_ms + (late_ms if number % 5 == 3 else 0.0)
            own.append([*TINY.items(), ("wait:collective", took), ("wait:fusion", parts["wait:fusion"])])
        steps.append(own)
    trace = make_trace(steps, nbytes=50_000)
    return replace(trace, meta=replace(trace.meta, runtime="torch", hosts={0: "a", 1: "a"}))


@pytest.mark.parametrize(("collective_ms", "late_ms"), [(1.2, 0.0), (0.8, 2.3)])
def test_a_tiny_model_that_waits_for_its_only_collective_is_healthy(collective_ms: float, late_ms: float) -> None:
    """Nobody can do without it, nor without losing a core for a slice now and then."""
    verdict = analyze(tiny(collective_ms, late_ms=late_ms)).verdict

    assert (verdict.class_, verdict.cause) == ("healthy", "nothing-found")


@pytest.mark.parametrize(("collective_ms", "late_ms"), [(9.0, 0.0), (0.8, 12.0)])
def test_a_tiny_model_whose_collective_takes_far_longer_is_not(collective_ms: float, late_ms: float) -> None:
    """9 ms for 50 KB in every step, or 12 in each fifth, have a reason."""
    assert analyze(tiny(collective_ms, late_ms=late_ms)).verdict.class_ == "communication"


@pytest.mark.parametrize(("first", "is_told"), [(0, False), (5, True)])
def test_a_short_run_that_begins_slowly_has_no_slow_stretch(first: int, is_told: bool) -> None:
    """Eight of eighteen steps take 40 ms longer: at the beginning that is warming up, or the end is quick by chance."""
    steps = jittered(uniform(2, 18, HEALTHY))
    for own in steps:
        for number in range(1 + first, 9 + first):
            own[number] = [*own[number], ("forward", 40)]
    found = {finding.cause for finding in analyze(make_trace(steps)).findings}

    assert ("slow-stretch" in found) == is_told


def test_a_run_that_was_quicker_at_its_beginning_is_slower_since() -> None:
    """Denormal numbers since step 15: most steps are slow, so that the usual one is."""
    steps = uniform(2, 100, HEALTHY)
    for own in steps:
        own[15:] = [[*step, ("forward", 60.0)] for step in own[15:]]
    analysis = analyze(make_trace(jittered(steps)))

    assert (analysis.verdict.class_, analysis.verdict.cause) == ("compute", "slow-stretch")
    assert "since step 15 on all ranks, most of it in forward" in analysis.verdict.sentence
    assert analysis.verdict.predicted_gain == pytest.approx(0.85 * 60 / (analysis.facts.mean_step_ns / MS), abs=0.04)
