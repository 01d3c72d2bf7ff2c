"""What every rank computes for nothing in a step: named, with the share that the recording has found."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.traces import MS
from tlkit.collector import analyze
from tlkit.collector.analysis import Analysis
from tlkit.timeline.model.trace import Trace

from .runs import even, record


def analyzed(settings: Mapping[int, Mapping[str, float]], details: Mapping[int, Mapping[str, str]]) -> Analysis:
    trace: Trace = record(even(2, 30))
    return analyze(replace(trace, meta=replace(trace.meta, settings=settings, setting_details=details)))


@pytest.mark.parametrize("cause", ["computed-again", "backward-again", "zero-gradients"])
def test_all_ranks_do_it(cause: str) -> None:
    """Its share of forward and backward is promised, by what the least of the ranks has of it."""
    details = {0: {cause: "Encoder<b>, 2 times"}, 1: {cause: "Encoder<b>, 2 times"}}
    analysis = analyzed({0: {cause: 0.5}, 1: {cause: 0.4}}, details)
    verdict, facts = analysis.verdict, analysis.facts
    both_ns = float(facts.part("forward").mean() + facts.part("backward").mean())

    assert (verdict.class_, verdict.cause, verdict.ranks) == ("compute", cause, (0, 1))
    assert verdict.predicted_gain * facts.mean_step_ns == pytest.approx(0.4 * both_ns, abs=MS / 2)
    assert "(Encoder<b>, 2 times)" in verdict.sentence
    assert "costly-settings" not in {finding.cause for finding in analysis.findings}


def test_it_is_worth_little() -> None:
    """Nothing is said."""
    analysis = analyzed({0: {"computed-again": 0.02}, 1: {"computed-again": 0.02}}, {})

    assert analysis.verdict.class_ == "healthy"


def test_one_rank_does_it() -> None:
    """That is a straggler, if it is one."""
    analysis = analyzed({1: {"backward-again": 0.5}}, {})

    assert analysis.verdict.class_ == "healthy"
