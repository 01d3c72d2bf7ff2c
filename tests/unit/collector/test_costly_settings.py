"""Debugging aids that were left on: named where nothing else is found, and as the reason why a rank is slow."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.traces import MS
from tlkit.collector import analyze
from tlkit.timeline.model.trace import Trace
from tlkit.timeline.read.open import open_trace

from .runs import even, record

SAMPLES = Path(__file__).parents[3] / "samples" / "traces"


def with_settings(trace: Trace, settings: Mapping[int, tuple[str, ...]]) -> Trace:
    return replace(trace, meta=replace(trace.meta, settings=settings))


def test_nothing_else_is_found() -> None:
    """They are the verdict, and promise nothing."""
    on = ("autograd-anomaly", "tracemalloc")
    analysis = analyze(with_settings(record(even(2, 30)), {0: on, 1: on}))
    verdict = analysis.verdict

    assert (verdict.class_, verdict.cause, verdict.ranks) == ("compute", "costly-settings", (0, 1))
    assert verdict.predicted_gain == 0
    assert verdict.sentence.startswith("Every rank has autograd's anomaly detection on, which records a traceback")
    assert "tracemalloc on, which" in verdict.sentence
    assert verdict.remedy.startswith("torch.autograd.set_detect_anomaly(False)")
    assert [finding.cause for finding in analysis.findings].count("costly-settings") == 1


def test_a_rank_that_is_as_quick_as_one_without_is_healthy() -> None:
    """Beside the other rank it is seen that it costs nothing worth a change; it is a finding all the same."""
    analysis = analyze(with_settings(record(even(2, 30)), {1: ("tracemalloc",)}))

    assert analysis.verdict.class_ == "healthy"
    (found,) = (finding for finding in analysis.findings if finding.cause == "costly-settings")
    assert found.sentence.startswith("Rank 1 has tracemalloc on")


def slow_second(settings: Mapping[int, tuple[str, ...]]) -> Trace:
    """Rank 1 of three has 30 ms more of forward in each step."""
    plan = even(3, 40)
    forward = plan.forward.copy()
    forward[1] += 30 * MS
    return with_settings(record(replace(plan, forward=forward)), settings)


def test_why_one_rank_is_slow() -> None:
    """It alone has it on."""
    verdict = analyze(slow_second({1: ("python-tracing",)})).verdict

    assert (verdict.class_, verdict.ranks) == ("straggler", (1,))
    assert "in forward: it has a tracer of Python" in verdict.sentence
    assert "Besides" not in verdict.sentence
    assert verdict.remedy == "Rank 1: run the training without it."
    assert verdict.evidence["root_cause"]["is"] == "costly-settings"


@pytest.mark.parametrize("others", [(0, 1), (0, 1, 2)])
def test_what_others_have_as_well_is_not_why(others: tuple[int, ...]) -> None:
    """Of all ranks it is said besides."""
    verdict = analyze(slow_second(dict.fromkeys(others, ("tracemalloc",)))).verdict

    assert (verdict.class_, verdict.ranks) == ("straggler", (1,))
    assert verdict.evidence["root_cause"]["is"] != "costly-settings"
    assert ("Besides: every rank has tracemalloc on" in verdict.sentence) == (len(others) == 3)


def test_batches_that_are_larger_come_first() -> None:
    """A reason that the counters show is left alone."""
    trace = open_trace(SAMPLES / "uneven-batches")
    rank = analyze(trace).verdict.ranks[0]
    verdict = analyze(with_settings(trace, {rank: ("tracemalloc",)})).verdict

    assert verdict.cause == "uneven-batches"
    assert "tracemalloc" not in verdict.sentence
