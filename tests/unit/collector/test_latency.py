"""Collectives that take long whatever they carry."""

from dataclasses import replace

import numpy as np
import pytest

from tests.traces import MS
from tlkit.collector import Analysis, analyze

from .runs import even, record


def run(latency_ms: float, ms_a_megabyte: float, hosts: tuple[str, ...] = ("a", "b")) -> Analysis:
    """Two ranks, three buckets of 1, 4 and 8 MB a step."""
    plan = even(2, 24, buckets=3)
    nbytes = np.tile(np.array([1_000_000, 4_000_000, 8_000_000]), (24, 1))
    run_ns = (latency_ms * MS + nbytes / 1e6 * ms_a_megabyte * MS).astype(np.int64)
    trace = record(replace(plan, nbytes=nbytes, run=run_ns))
    return analyze(replace(trace, meta=replace(trace.meta, hosts=dict(enumerate(hosts)))))


def test_a_latency_far_above_that_of_networks_is_the_verdict() -> None:
    """40 ms a collective, most of it exposed; half a millisecond is left of each."""
    analysis = run(40, 0.1)

    assert (analysis.verdict.class_, analysis.verdict.cause) == ("communication", "high-latency")
    assert analysis.verdict.evidence["latency_ns"] == pytest.approx(40 * MS, rel=0.02)
    assert "however few bytes it carries" in analysis.verdict.sentence
    assert analysis.verdict.predicted_gain > 0.3


@pytest.mark.parametrize(("latency_ms", "ms_a_megabyte"), [(0.4, 0.1), (0.4, 10)])
def test_a_network_that_answers_quickly_has_none(latency_ms: float, ms_a_megabyte: float) -> None:
    """Nor has one that is slow by its bytes: that is the link."""
    assert "high-latency" not in {finding.cause for finding in run(latency_ms, ms_a_megabyte).findings}
