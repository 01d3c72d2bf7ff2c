"""Debugging aids that were left on: named where nothing else is found, and as the reason why a rank is slow."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.traces import MS
from tlkit.collector import analyze
from tlkit.timeline.model.trace import TENSOR_COLUMNS, Trace, make_table
from tlkit.timeline.read.open import open_trace

from .runs import even, record

SAMPLES = Path(__file__).parents[3] / "samples" / "traces"


def with_settings(trace: Trace, settings: Mapping[int, Mapping[str, float]]) -> Trace:
    return replace(trace, meta=replace(trace.meta, settings=settings))


def test_nothing_else_is_found() -> None:
    """They are the verdict, and promise nothing."""
    on = {"autograd-anomaly": 0.0, "tracemalloc": 0.0}
    analysis = analyze(with_settings(record(even(2, 30)), {0: on, 1: on}))
    verdict = analysis.verdict

    assert (verdict.class_, verdict.cause, verdict.ranks) == ("compute", "costly-settings", (0, 1))
    assert verdict.predicted_gain == 0
    assert verdict.sentence.startswith("Every rank has autograd's anomaly detection on, which records a traceback")
    assert "tracemalloc on, which" in verdict.sentence
    assert verdict.remedy.startswith("torch.autograd.set_detect_anomaly(False)")
    assert [finding.cause for finding in analysis.findings].count("costly-settings") == 1


@pytest.mark.parametrize(("share", "gain"), [(1.0, 0.5), (0.4, 0.2), (0.0, 0.0)])
def test_double_precision_takes_twice_as_long(share: float, gain: float) -> None:
    """As much of what is computed and sent as the model has of it; nothing is promised where that is not known."""
    plan = even(2, 30)
    trace = with_settings(record(plan), {rank: {"double-precision": share} for rank in (0, 1)})
    analysis = analyze(trace)
    verdict = analysis.verdict
    part = sum(float(analysis.facts.part(name).mean()) for name in ("forward", "backward", "optimizer"))
    sent = sum(float(analysis.facts.part(name).mean()) for name in ("collective", "fusion"))

    assert (verdict.class_, verdict.cause, verdict.ranks) == ("compute", "costly-settings", (0, 1))
    assert gain * part <= verdict.predicted_gain * analysis.facts.mean_step_ns * 1.01 <= gain * (part + sent) * 1.1
    assert ("if float32 takes half the time" in verdict.sentence) == bool(share)
    assert ("cannot tell" in verdict.sentence) == (not share)
    assert "Besides" not in verdict.sentence


def test_of_one_setting_nothing_is_known() -> None:
    """What goes with the other is promised, and the rest is said."""
    on = {"double-precision": 1.0, "tracemalloc": 0.0}
    verdict = analyze(with_settings(record(even(2, 30)), {0: on, 1: on})).verdict

    assert verdict.predicted_gain > 0.3
    assert verdict.sentence.endswith("What the rest costs, this run alone cannot tell.")


def test_on_some_ranks_it_is_no_more_than_a_reason() -> None:
    """What they compute for nothing may be hidden behind the others."""
    (found,) = (
        finding
        for finding in analyze(with_settings(record(even(2, 30)), {1: {"double-precision": 1.0}})).findings
        if finding.cause == "costly-settings"
    )

    assert found.predicted_gain == 0


def asked_within_backward(trace: Trace, at: float) -> Trace:
    """With a gradient of the head that each rank submits when backward has got so far."""
    rows: dict[str, list[object]] = {name: [] for name in TENSOR_COLUMNS}
    backward = trace.spans[trace.spans["name"] == "BACKWARD"]
    for rank, start, dur in zip(backward["rank"], backward["start_ns"], backward["dur_ns"], strict=True):
        asked = int(start + at * dur)
        row = (rank, 0, -1, "head.weight", "allreduce", 4096, asked, asked, asked, asked + MS, "gradient")
        for name, value in zip(TENSOR_COLUMNS, row, strict=True):
            rows[name].append(value)
    return replace(trace, tensors=make_table(TENSOR_COLUMNS, rows))


@pytest.mark.parametrize(
    ("runtime", "at", "gain"),
    [
        ("hvd", 0.2, 0.8),  # what backward does after the head's gradient was asked for
        (
            "hvd",
            0.97,
            0.45,
        ),  # adapters in every layer: half of what is computed for the nine tenths without an optimizer
        ("torch", 0.2, 0.45),  # DistributedDataParallel asks for all
    ],
)
def test_gradients_for_nothing(runtime: str, at: float, gain: float) -> None:
    """An encoder that nobody trains."""
    trace = asked_within_backward(record(even(2, 30)), at)
    trace = replace(trace, meta=replace(trace.meta, runtime=runtime))
    analysis = analyze(with_settings(trace, {rank: {"untrained-gradients": 0.9} for rank in (0, 1)}))
    verdict = analysis.verdict
    saved = verdict.predicted_gain * analysis.facts.mean_step_ns

    sent = 0.9 * 5 * MS if runtime == "torch" else 0.0

    assert verdict.cause == "costly-settings"
    assert saved == pytest.approx(gain * float(analysis.facts.part("backward").mean()) + sent, rel=0.05)


def test_a_table_that_is_mostly_zero() -> None:
    """Nine tenths of its bytes need not be sent, nor be updated."""
    analysis = analyze(with_settings(record(even(2, 30)), {rank: {"mostly-zero-gradients": 1.0} for rank in (0, 1)}))
    (found,) = (finding for finding in analysis.findings if finding.cause == "costly-settings")
    update_ns = float(analysis.facts.part("optimizer").mean())

    assert 0.9 * update_ns <= found.predicted_gain * analysis.facts.mean_step_ns <= 0.9 * (update_ns + 5 * MS) * 1.05


def test_a_rank_that_is_as_quick_as_one_without_is_healthy() -> None:
    """Beside the other rank it is seen that it costs nothing worth a change; it is a finding all the same."""
    analysis = analyze(with_settings(record(even(2, 30)), {1: {"tracemalloc": 0.0}}))

    assert analysis.verdict.class_ == "healthy"
    (found,) = (finding for finding in analysis.findings if finding.cause == "costly-settings")
    assert found.sentence.startswith("Rank 1 has tracemalloc on")


def slow_second(settings: Mapping[int, Mapping[str, float]]) -> Trace:
    """Rank 1 of three has 30 ms more of forward in each step."""
    plan = even(3, 40)
    forward = plan.forward.copy()
    forward[1] += 30 * MS
    return with_settings(record(replace(plan, forward=forward)), settings)


def test_why_one_rank_is_slow() -> None:
    """It alone has it on."""
    verdict = analyze(slow_second({1: {"python-tracing": 0.0}})).verdict

    assert (verdict.class_, verdict.ranks) == ("straggler", (1,))
    assert "in forward: it has a tracer of Python" in verdict.sentence
    assert "Besides" not in verdict.sentence
    assert verdict.remedy == "Rank 1: run the training without it."
    assert verdict.evidence["root_cause"]["is"] == "costly-settings"


@pytest.mark.parametrize("others", [(0, 1), (0, 1, 2)])
def test_what_others_have_as_well_is_not_why(others: tuple[int, ...]) -> None:
    """Of all ranks it is said besides."""
    verdict = analyze(slow_second({rank: {"tracemalloc": 0.0} for rank in others})).verdict

    assert (verdict.class_, verdict.ranks) == ("straggler", (1,))
    assert verdict.evidence["root_cause"]["is"] != "costly-settings"
    assert ("Besides: every rank has tracemalloc on" in verdict.sentence) == (len(others) == 3)


def test_batches_that_are_larger_come_first() -> None:
    """A reason that the counters show is left alone."""
    trace = open_trace(SAMPLES / "uneven-batches")
    rank = analyze(trace).verdict.ranks[0]
    verdict = analyze(with_settings(trace, {rank: {"tracemalloc": 0.0}})).verdict

    assert verdict.cause == "uneven-batches"
    assert "tracemalloc" not in verdict.sentence
