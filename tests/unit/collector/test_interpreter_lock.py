"""Threads that hold the interpreter's lock: they hold up all phases alike, and communication with them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pandas as pd
import pytest

from tests.traces import MS, Parts, make_trace
from tlkit.collector import Analysis, analyze
from tlkit.timeline.model.trace import COUNTER_COLUMNS, Trace, make_table
from tlkit.timeline.vocabulary import CPU_COUNTERS, PROCESS_CPU_COUNTER, STARVED_COUNTERS, Category

from .test_rules import metered, rows_of, with_spans

#: Phases of a rank without such a thread; with one they take twice as long, and the other ranks wait.
PHASES = {"forward": 15.0, "backward": 35.0, "optimizer": 2.0, "other": 2.0}
OTHERS = 0.6


def run_with(
    held: Sequence[int], *, phases: Sequence[str] = tuple(PHASES), others: float = OTHERS, blocked: float = 0.5
) -> Analysis:
    """A share of some phases is spent blocked on some ranks, in whose processes other threads run for a share of the step."""
    lost = sum(PHASES.values()) if held else 0.0
    steps = [_steps(2.0 if rank in held else 1.0, 6.0 + (0.0 if rank in held else lost)) for rank in range(2)]
    trace = make_trace(steps, nbytes=4_000_000, tensors_per_collective=1)
    halves = {
        (f"{phase} cpu_ns", rank): lambda parts, phase=phase: parts[phase] * (1 - blocked)
        for phase in phases
        for rank in held
    }
    loop_ms = {rank: PHASES["other"] * (2 if rank in held and "other" not in phases else 1) for rank in range(2)}
    return analyze(with_other_threads(metered(steps, trace, halves), held, others, loop_ms))


def _steps(times: float, negotiate: float) -> list[Parts]:
    forward, backward, optimizer, other = (times * ms for ms in PHASES.values())
    waits = [("wait:negotiate", negotiate), ("wait:collective", 12.0)]
    return [[("forward", forward), ("backward", backward), *waits, ("optimizer", optimizer), ("host", other)]] * 30


def with_other_threads(trace: Trace, held: Sequence[int], others: float, loop_ms: Mapping[int, float]) -> Trace:
    """What each training thread runs in the loop's own code, and what all threads of its process run besides."""
    own = trace.counters[trace.counters["name"].astype(str).str.endswith(" cpu_ns")]
    ran = own.groupby(["rank", "ts_ns"])["value"].sum()
    rows = []
    for row in rows_of(trace):
        rank, at_ns, loop_ns = int(row.rank), int(row.end_ns) - 1, loop_ms[int(row.rank)] * MS
        share = others if rank in held else 0.02
        process_ns = ran.get((rank, at_ns), 0.0) + loop_ns + share * (row.end_ns - row.start_ns)
        rows += [
            (rank, CPU_COUNTERS[Category.OTHER], at_ns, loop_ns),
            (rank, STARVED_COUNTERS[Category.OTHER], at_ns, 0.0),
            (rank, PROCESS_CPU_COUNTER, at_ns, process_ns),
        ]
    more = make_table(COUNTER_COLUMNS, dict(zip(COUNTER_COLUMNS, map(list, zip(*rows, strict=True)), strict=True)))
    joined = pd.concat([trace.counters.astype({"name": "object"}), more.astype({"name": "object"})])
    return replace(
        trace, counters=make_table(COUNTER_COLUMNS, {name: joined[name].to_numpy() for name in COUNTER_COLUMNS})
    )


@pytest.mark.parametrize(("held", "class_"), [((0, 1), "compute"), ((1,), "straggler")])
def test_a_thread_that_computes_in_python_is_told_first(held: tuple[int, ...], class_: str) -> None:
    """Its gain counts what communication waits for the lock, too."""
    verdict = run_with(held).verdict

    assert (verdict.class_, verdict.cause, verdict.ranks) == (class_, "interpreter-lock", held)
    assert verdict.evidence["other_threads_ratio"] == pytest.approx(OTHERS, abs=0.02)
    assert verdict.evidence["blocked_by_phase_ns"]["backward"] == pytest.approx(35 * MS, rel=0.05)
    assert verdict.predicted_gain > 0.2


@pytest.mark.parametrize(
    ("held", "others", "blocked", "is_told"),
    [
        ((1,), 0.2, 0.12, True),
        ((0, 1), 0.2, 0.12, False),  # as long on both: nothing to compare with
        ((1,), 0.2, 0.01, False),
        ((1,), 0.05, 0.12, False),
    ],
)
def test_a_thread_that_computes_now_and_then_is_seen_beside_ranks_without(
    *, held: tuple[int, ...], others: float, blocked: float, is_told: bool
) -> None:
    """A fifth of the step, for which the training stands still a little longer than the other rank's."""
    found = [one for one in run_with(held, others=others, blocked=blocked).findings if one.cause == "interpreter-lock"]

    assert [one.ranks for one in found] == ([held] if is_told else [])


def test_other_threads_that_wait_or_one_phase_that_is_blocked_hold_no_lock() -> None:
    """A sleep in all phases; a lock of the model's own; threads of OpenMP that wait for each other; one that only computes."""
    for analysis in (
        run_with((0, 1), others=0.05),
        run_with((0, 1), phases=("forward",)),
        run_with((0, 1), phases=("forward", "backward", "optimizer")),
        run_with((0, 1), phases=()),
    ):
        assert "interpreter-lock" not in {finding.cause for finding in analysis.findings}


def _half_of(phase: str, parts: Mapping[str, float]) -> float:
    return parts[phase] / 2


@pytest.mark.parametrize(
    ("busy", "words"), [((0,), "the process of rank 0"), ((0, 1), "the ranks' own processes"), ((), "")]
)
def test_threads_of_ranks_that_lack_cores_are_named(busy: tuple[int, ...], words: str) -> None:
    """They take cores, whatever else does."""
    parts = {"forward": 30.0, "backward": 60.0, "optimizer": 5.0, "host": 2.0}
    steps: list[list[Parts]] = [[[*parts.items(), ("wait:collective", 5.0)]] * 30 for _ in range(2)]
    counters: dict[tuple[str, int], Callable[[dict[str, float]], float]] = {}
    for rank in range(2):
        for phase in ("forward", "backward"):
            counters[f"{phase} cpu_ns", rank] = counters[f"{phase} starved_ns", rank] = partial(_half_of, phase)
    trace = metered(steps, make_trace(steps, nbytes=4_000_000, tensors_per_collective=1), counters)
    analysis = analyze(with_other_threads(trace, busy, 0.5, {0: 2.0, 1: 2.0}))
    (found,) = (finding for finding in analysis.findings if finding.cause == "starved-of-cores")

    assert (f"Other threads of {words} run for" in found.sentence) == bool(words)
    assert ("py-spy" in found.remedy) == bool(words)
    assert found.evidence["busy_threads"]["ranks"] == list(busy)


def test_the_line_of_the_thread_is_named() -> None:
    """Where it was found running; not where it sleeps in between, which is where most looks find it."""
    analysis = run_with((1,))
    looks, found = 400, []
    length_ns = analysis.trace.steps["end_ns"].max() // looks
    for number in range(looks):
        at_ns = number * length_ns
        found.append((1, "code", "code", "other", "train.py:9 <module> (in torch)", at_ns, 1000))
        name = "monitor.py:30 run" if number % 10 < 2 else "monitor.py:31 run"
        found.append((1, "code of threads", "code of threads", "other", name, at_ns, length_ns // 4))
    (told,) = (one for one in analyze(with_spans(analysis.trace, found)).findings if one.cause == "interpreter-lock")

    assert "100% of what such threads run is at monitor.py:30, in run()." in told.sentence
    assert "py-spy" not in told.remedy
