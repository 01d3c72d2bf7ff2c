"""Collectives that take long whatever they carry."""

from dataclasses import replace

import numpy as np
import pytest

from tests.traces import MS
from tlkit.collector import Analysis, analyze
from tlkit.timeline.model.trace import COUNTER_COLUMNS, make_table

from .runs import even, record

FAR_APART = (1_000_000, 4_000_000, 8_000_000)
#: The first two lie between the same powers of two.
NEAR = (1_300_000, 2_000_000, 3_300_000)


def run(
    latency_ms: float, ms_a_megabyte: float, hosts: tuple[str, ...] = ("a", "b"), sizes: tuple[int, ...] = FAR_APART
) -> Analysis:
    """Two ranks, three buckets of 1, 4 and 8 MB a step."""
    plan = even(2, 24, buckets=3)
    nbytes = np.tile(np.array(sizes), (24, 1))
    run_ns = (latency_ms * MS + nbytes / 1e6 * ms_a_megabyte * MS).astype(np.int64)
    trace = record(replace(plan, nbytes=nbytes, run=run_ns))
    return analyze(replace(trace, meta=replace(trace.meta, hosts=dict(enumerate(hosts)))))


def without_cores(analysis: Analysis) -> Analysis:
    """The same run, whose training threads wait for a core in a quarter of each step."""
    steps = analysis.facts.steps
    rows: dict[str, list[object]] = {name: [] for name in COUNTER_COLUMNS}
    for row, rank in enumerate(steps.ranks):
        for begin, end in zip(steps.start_ns[row].tolist(), steps.end_ns[row].tolist(), strict=True):
            for column, value in zip(rows, (rank, "forward starved_ns", end - 1, (end - begin) / 4), strict=True):
                rows[column].append(value)
    return analyze(replace(analysis.trace, counters=make_table(COUNTER_COLUMNS, rows)))


@pytest.mark.parametrize(("latency_ms", "is_told"), [(40, True), (8, False)])
def test_without_cores_only_a_latency_beyond_their_time_slices_is_the_networks(
    latency_ms: float, *, is_told: bool
) -> None:
    """Two ranks of a ring wait four times for a slice of four milliseconds at most."""
    found = {finding.cause for finding in without_cores(run(latency_ms, 0.1)).findings}

    assert ("high-latency" in found) == is_told
    assert "high-latency" in {finding.cause for finding in run(latency_ms, 0.1).findings}


@pytest.mark.parametrize("sizes", [FAR_APART, NEAR])
def test_a_latency_far_above_that_of_networks_is_the_verdict(sizes: tuple[int, ...]) -> None:
    """40 ms a collective, most of it exposed; half a millisecond is left of each."""
    analysis = run(40, 0.1, sizes=sizes)

    assert (analysis.verdict.class_, analysis.verdict.cause) == ("communication", "high-latency")
    assert analysis.verdict.evidence["latency_ns"] == pytest.approx(40 * MS, rel=0.02)
    assert "however few bytes it carries" in analysis.verdict.sentence
    assert analysis.verdict.predicted_gain > 0.3
    fewer_bytes = [finding.predicted_gain for finding in analysis.findings if finding.cause == "bandwidth-bound"]
    assert sum(fewer_bytes) < 0.02  # what goes with no bytes does not go with half of them


@pytest.mark.parametrize("sizes", [FAR_APART, NEAR])
@pytest.mark.parametrize(("latency_ms", "ms_a_megabyte"), [(0.4, 0.1), (0.4, 10)])
def test_a_network_that_answers_quickly_has_none(
    latency_ms: float, ms_a_megabyte: float, sizes: tuple[int, ...]
) -> None:
    """Nor has one that is slow by its bytes: that is the link."""
    assert "high-latency" not in {finding.cause for finding in run(latency_ms, ms_a_megabyte, sizes=sizes).findings}
