"""Pipelines of tf.data that were counted: what they take from the training on full cores, and what of that is promised."""

from dataclasses import replace

import pytest

from tests.traces import make_trace, uniform
from tlkit.collector import Analysis, analyze
from tlkit.timeline.vocabulary import HOST_CORES, HOST_CPU, PROCESS_CPU_COUNTER, STAGE_CALLS, STAGE_WORK

from .test_diagnosis import jittered
from .test_too_many_threads import with_counters

_MAP = "Iterator::Root::Prefetch::BatchV2::ParallelMapV2"
_STEP = {"data": 0.3, "forward": 14.7, "backward": 21.0, "wait:collective": 2.0, "optimizer": 2.0}


def analyzed(*, work_ms: float, busy: float, stage: str = _MAP, ran_ms: float = 80.0, data_ms: float = 0.3) -> Analysis:
    """Two ranks on two cores, 40 ms a step, whose pipeline works so long on each batch."""
    trace = make_trace(jittered(uniform(2, 30, _STEP | {"data": data_ms})))
    told = {f"{STAGE_WORK}{stage}": work_ms * 1e6, f"{STAGE_WORK}Iterator::Root::Prefetch": 1e4}
    counters = {
        0: told | {f"{STAGE_CALLS}{stage}": 2.0, HOST_CPU: busy, HOST_CORES: 2.0},
        1: told | {f"{STAGE_CALLS}{stage}": 2.0},
    }
    for row in range(2):
        counters[row] |= {PROCESS_CPU_COUNTER: ran_ms * 1e6 * 25}  # once, for all of the analysed steps
    trace = with_counters(trace, counters)
    return analyze(replace(trace, meta=replace(trace.meta, framework="tensorflow")))


def test_a_pipeline_that_has_half_of_full_cores_is_named() -> None:
    """Though nobody waits: half of what the cores do is making batches."""
    verdict = analyzed(work_ms=39.0, busy=100.0).verdict
    assert (verdict.class_, verdict.cause, verdict.ranks) == ("data", "slow-loader", (0, 1))
    assert verdict.predicted_gain == pytest.approx(0.5, abs=0.05)
    assert "map()" in verdict.sentence
    assert "on cores that the training needs (47% of what runs there)" in verdict.sentence
    assert "cache()" in verdict.remedy


@pytest.mark.parametrize(
    ("what", "work_ms", "busy", "stage", "ran_ms"),
    [
        ("cores are free", 39.0, 50.0, _MAP, 80.0),
        ("the function sleeps", 39.0, 100.0, _MAP, 38.0),
        ("little is made", 1.0, 100.0, _MAP, 80.0),
        ("batches are only handed on", 39.0, 100.0, "Iterator::Root::Prefetch::BatchV2", 80.0),
    ],
)
def test_nothing_is_promised_where(what: str, work_ms: float, busy: float, stage: str, ran_ms: float) -> None:
    """Making batches takes nothing from the training there."""
    found = analyzed(work_ms=work_ms, busy=busy, stage=stage, ran_ms=ran_ms).findings
    assert "slow-loader" not in {finding.cause for finding in found}, what


def test_a_wait_for_batches_that_are_there_is_not_the_pipelines() -> None:
    """It has worked for a tenth of a millisecond: what is waited for is a core."""
    found = analyzed(work_ms=0.1, busy=100.0, data_ms=4.0).findings
    assert "slow-loader" not in {finding.cause for finding in found}
    found = analyzed(work_ms=6.0, busy=50.0, data_ms=4.0).findings
    assert "slow-loader" in {finding.cause for finding in found}
