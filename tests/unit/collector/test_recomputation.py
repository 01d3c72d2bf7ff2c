"""Forward that is computed once more inside of backward, and what counters say of it."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.traces import MS, make_trace, uniform
from tlkit.collector import analyze
from tlkit.timeline.model.trace import SPAN_COLUMNS, Trace, make_table
from tlkit.timeline.vocabulary import BACKWARD, FORWARD

from .test_diagnosis import HEALTHY, jittered
from .test_rules import best, metered

AGAIN_MS = 20


def with_recomputation(trace: Trace, ranks: tuple[int, ...] = (0, 1)) -> Trace:
    """In the middle of each backward of some ranks a forward of 20 ms."""
    spans = trace.spans
    backward = spans[(spans["name"] == BACKWARD) & spans["rank"].isin(ranks)]
    again = backward.assign(
        name=FORWARD, category="forward", start_ns=backward["start_ns"] + 10 * MS, dur_ns=AGAIN_MS * MS
    )
    every = pd.concat([spans.astype({"name": "object", "category": "object"}), again], ignore_index=True)
    every = every.sort_values(["rank", "start_ns"], kind="stable", ignore_index=True)
    return replace(trace, spans=make_table(SPAN_COLUMNS, {name: every[name].to_numpy() for name in SPAN_COLUMNS}))


def causes(trace: Trace) -> set[str]:
    return {finding.cause for finding in analyze(trace).findings}


def test_forward_inside_of_backward_is_told() -> None:
    """With what it takes of the step."""
    steps = jittered(uniform(2, 40, HEALTHY))
    analysis = analyze(with_recomputation(make_trace(steps)))
    finding = best(analysis, "recomputation")

    assert finding.predicted_gain == pytest.approx(AGAIN_MS * MS / analysis.facts.mean_step_ns, abs=0.02)
    assert finding.ranks == (0, 1)


def test_a_run_that_keeps_its_activations_recomputes_nothing() -> None:
    """Nor does one in which a single rank does: that one is slow."""
    trace = make_trace(jittered(uniform(2, 40, HEALTHY)))

    assert "recomputation" not in causes(trace)
    assert "recomputation" not in causes(with_recomputation(trace, (1,)))


def test_what_backward_has_run_for_forward_is_not_blocked() -> None:
    """Its counter holds what is told as forward's, whose own says that it ran for less."""
    steps = jittered(uniform(2, 40, HEALTHY))
    trace = with_recomputation(metered(steps, make_trace(steps)))
    forward = analyze(trace).facts.part("forward")

    assert np.median(forward) > 45 * MS, "30 ms, and 20 once more"
    assert "blocked-forward" not in causes(trace)
