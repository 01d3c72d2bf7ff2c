"""A gain is not more certain than the model that predicts it."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tests.traces import make_trace
from tlkit.collector import analyze
from tlkit.collector.analysis import Analysis
from tlkit.collector.findings.doubt import doubt_note, doubted
from tlkit.collector.predict.gain import widened
from tlkit.collector.predict.replay import Replay
from tlkit.collector.predict.what_if import predict
from tlkit.collector.reports.html import to_html
from tlkit.collector.reports.markdown import to_markdown
from tlkit.collector.reports.report import make_report
from tlkit.collector.reports.summary import summarize
from tlkit.collector.reports.terminal import render
from tlkit.timeline.errors import UsageError

from .test_diagnosis import changed, jittered


def analysis_with_error(monkeypatch: pytest.MonkeyPatch, error: float) -> Analysis:
    """A run with a slow rank, whose replay without a change is so far off the measured steps."""
    monkeypatch.setattr(Replay, "error_ratio", property(lambda _: error))
    return analyze(make_trace(jittered(changed(2, 30, [1], forward=50))))


def views(analysis: Analysis) -> list[str]:
    summary = summarize(analysis)
    terminal = io.StringIO()
    render(summary, Console(file=terminal, width=400))
    return [terminal.getvalue(), to_markdown(summary), to_html(summary, analysis), str(make_report(analysis))]


def test_a_model_that_is_a_little_off_widens_the_intervals_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    doubtful = analysis_with_error(monkeypatch, 0.1)
    said = views(doubtful)
    sure = analysis_with_error(monkeypatch, 0.0)
    (low, high), (least, most) = doubtful.findings[0].gain_interval, sure.findings[0].gain_interval

    assert doubtful.verdict.cause == sure.verdict.cause == "slow-forward"
    assert (low, high) == pytest.approx((least - 0.1, most + 0.1))
    assert all("10% off the measured steps" in text for text in said)
    assert not any("off the measured steps" in text for text in views(sure))


@pytest.mark.parametrize(
    ("gain", "interval", "expected"),
    [
        (0.0, (0.0, 0.0), (0.0, 0.0)),  # what changes nothing is certain
        (0.5, (0.5, 0.5), (0.435, 0.565)),  # steps that are all alike
        (0.2, (0.0, 0.8), (0.0, 0.801)),  # steps that say nothing
        (0.97, (0.97, 0.97), (0.858, 1.0)),
    ],
)
def test_intervals_hold_what_the_model_leaves_out(
    gain: float, interval: tuple[float, float], expected: tuple[float, float]
) -> None:
    """1.5 points and a tenth of the gain, beside how sure the mean of the steps is."""
    assert widened(gain, interval, 0.0) == pytest.approx(expected, abs=1e-3)


def test_a_model_that_does_not_fit_promises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was seen is still told; no view has a gain, and neither has --what-if."""
    analysis = analysis_with_error(monkeypatch, 0.3)

    assert analysis.verdict.cause == "slow-forward"
    assert analysis.plan == ()
    assert {finding.predicted_gain for finding in (analysis.verdict, *analysis.findings)} == {0.0}
    for text in views(analysis):
        assert "no gain is promised" in text
        assert "Expected:" not in text
    with pytest.raises(UsageError, match="30% off"):
        predict(analysis.facts, ["straggler=none"])


def test_a_finding_keeps_its_gain_where_nothing_is_replayed() -> None:
    """Traces of communication alone have gains of their own."""
    analysis = analyze(make_trace(jittered(changed(2, 30, [1], forward=50))))
    unreplayed = replace(analysis.facts, replay=None)

    assert doubt_note(unreplayed) is None
    told = doubted(unreplayed, analysis.findings)
    assert [finding.predicted_gain for finding in told] == [finding.predicted_gain for finding in analysis.findings]
