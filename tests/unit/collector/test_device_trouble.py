"""Devices that are lost or have errors, and memory that runs out."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.traces import MS
from tlkit.collector import analyze
from tlkit.timeline.model.columns import TableBuilder
from tlkit.timeline.model.trace import COUNTER_COLUMNS, Trace

from .runs import Plan, even, record


def with_counters(trace: Trace, rows: list[tuple[int, str, int, float]]) -> Trace:
    """A run with counters: rank, name, time (ns) and value."""
    builder = TableBuilder(COUNTER_COLUMNS)
    for row in rows:
        builder.add(*row)
    return replace(trace, counters=builder.finish())


@pytest.mark.parametrize(("name", "value"), [("gpu lost", 1.0), ("gpu xid", 79.0)])
def test_a_device_that_is_gone_is_the_verdict(name: str, value: float) -> None:
    """Whatever else there was to gain."""
    analysis = analyze(
        with_counters(record(even(2, 30)), [(1, name, 500 * MS, value), (0, "gpu power W", 500 * MS, 300.0)])
    )

    assert (analysis.verdict.cause, analysis.verdict.ranks) == ("gpu-lost", (1,))
    assert "The GPU of rank 1 has fallen off the bus" in analysis.verdict.sentence
    assert "Until then: Nothing stands out" in analysis.verdict.sentence
    assert [finding.cause for finding in analysis.findings if finding.ranks == (1,)] == ["gpu-lost"]


def test_errors_of_a_device_are_a_finding_and_not_the_verdict() -> None:
    """The training went on."""
    rows = [
        (1, "gpu xid", 500 * MS, 94.0),
        (0, "gpu uncorrected memory errors", 500 * MS, 2.0),
        (0, "gpu lost", 600 * MS, 0.0),
    ]
    analysis = analyze(with_counters(record(even(2, 30)), rows))
    (found,) = [finding for finding in analysis.findings if finding.cause == "gpu-errors"]

    assert analysis.verdict.class_ == "healthy"
    assert found.ranks == (0, 1)
    assert found.evidence == {"xid": [94], "uncorrected": 2}
    assert "error 94 (Xid) and memory errors that were not corrected" in found.sentence


def slow_in_the_middle(more_ms: int) -> tuple[Plan, np.ndarray]:
    """Steps 20 to 29 of 60 take so much longer on rank 0; with their starts."""
    plan = even(2, 60)
    forward = plan.forward.copy()
    forward[0, 20:30] += more_ms * MS
    return replace(plan, forward=forward), np.sort(record(replace(plan, forward=forward)).steps["start_ns"].unique())


def retries(trace: Trace, at: list[tuple[int, float]]) -> Trace:
    """Rank 0's allocator has asked again so often by these steps' ends."""
    ends = trace.steps[trace.steps["rank"] == 0].set_index("step")["end_ns"]
    first = int(trace.steps["start_ns"].min())
    return with_counters(
        trace,
        [(0, "torch allocation retries", first, 0.0)]
        + [(0, "torch allocation retries", int(ends[step]), value) for step, value in at],
    )


def test_memory_that_runs_out_explains_long_steps() -> None:
    """Counted once a second or so: the steps since the sample before are meant."""
    plan, _ = slow_in_the_middle(60)
    analysis = analyze(retries(record(plan), [(19, 0.0), (24, 3.0), (29, 7.0), (40, 7.0), (59, 7.0)]))
    (found,) = [finding for finding in analysis.findings if finding.cause == "allocator-retries"]
    length = record(plan).steps.groupby("step")[["start_ns", "end_ns"]].agg({"start_ns": "min", "end_ns": "max"})
    total = float((length["end_ns"] - length["start_ns"]).sum())

    assert found.ranks == (0,)
    assert found.evidence["retries"] == 7
    assert found.evidence["steps"] == pytest.approx(10, abs=1)
    assert "ran out of memory 7 times" in found.sentence
    assert 0 < found.predicted_gain <= 10 * 60 * MS / total * 1.1


@pytest.mark.parametrize("at", [[(19, 0.0), (59, 0.0)], [(45, 0.0), (50, 3.0), (59, 3.0)]], ids=["none", "elsewhere"])
def test_other_long_steps_are_not_the_allocators(at: list[tuple[int, float]]) -> None:
    """No retries, or retries while the steps are as short as ever."""
    plan, _ = slow_in_the_middle(60)
    analysis = analyze(retries(record(plan), at))

    assert "allocator-retries" not in {finding.cause for finding in analysis.findings}


def test_counters_of_a_trace_without_steps_say_that_a_device_is_gone() -> None:
    """It may have been lost before the first one was over."""
    trace = record(even(2, 30))
    empty = with_counters(replace(trace, steps=trace.steps.iloc[:0]), [(0, "gpu lost", 5 * MS, 1.0)])

    assert isinstance(empty.counters, pd.DataFrame)
    assert analyze(empty).verdict.cause == "gpu-lost"
