"""Gradients that are reduced after each of several backward passes of a step."""

import pytest

from tests.traces import make_trace
from tlkit.collector import Analysis, analyze

from .test_diagnosis import jittered

_PASS: list[tuple[str, float]] = [("forward", 10), ("backward", 20), ("wait:collective", 15)]


def run(passes: list[list[tuple[str, float]]]) -> Analysis:
    step = [*[part for one in passes for part in one], ("optimizer", 3)]
    return analyze(make_trace(jittered([[step] * 30 for _ in range(2)])))


def test_reductions_of_all_passes_but_the_last_are_not_needed() -> None:
    """Three of four take 45 of the 183 ms."""
    analysis = run([_PASS] * 4)

    assert (analysis.verdict.class_, analysis.verdict.cause) == ("communication", "reduced-in-every-pass")
    assert analysis.verdict.evidence["passes_per_step"] == 4
    assert analysis.verdict.predicted_gain == pytest.approx(45 / 183, abs=0.03)
    assert "backward_passes_per_step=4" in analysis.verdict.remedy


@pytest.mark.parametrize("passes", [[_PASS], [_PASS[:2], _PASS], [[*_PASS, _PASS[2]], _PASS]])
def test_gradients_that_are_reduced_once_a_step_are_not_meant(passes: list[list[tuple[str, float]]]) -> None:
    """One pass; two that are reduced together; two models, the first of them larger."""
    assert "reduced-in-every-pass" not in {finding.cause for finding in run(passes).findings}


def test_an_optimizer_that_evaluates_the_model_again_needs_all_of_it() -> None:
    """As L-BFGS does: it works after each of its passes."""
    analysis = run([[*_PASS, ("optimizer", 3)]] * 3)

    assert "reduced-in-every-pass" not in {finding.cause for finding in analysis.findings}
