"""Clocks that are apart, brought together by the collectives that ranks share."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tlkit.timeline import open_trace
from tlkit.timeline.model.clocks import align, compare, find_clocks
from tlkit.timeline.model.trace import (
    ARRIVAL_COLUMNS,
    COLLECTIVE_COLUMNS,
    COUNTER_COLUMNS,
    SPAN_COLUMNS,
    STEP_COLUMNS,
    TENSOR_COLUMNS,
    Clock,
    Trace,
    TraceMeta,
    make_table,
)


def make_trace(
    offsets: list[int], drifts: list[float], count: int, seed: int, *, groups: list[list[int]] | None = None
) -> Trace:
    """Ranks that meet `count` times over 20 s, each with a clock of its own: true = own + offset + drift x own."""
    random = np.random.default_rng(seed)
    rows = []
    for number, members in enumerate(groups or [list(range(len(offsets)))]):
        meeting = np.sort(random.uniform(1e9, 21e9, count))
        for seq, at in enumerate(meeting):
            arrivals = at + random.exponential(2e5, len(members))
            over = arrivals.max() + random.uniform(2e4, 3e5)
            for rank, arrived in zip(members, arrivals, strict=True):
                left = over + random.exponential(1e4)
                own = [(time - offsets[rank]) / (1 + drifts[rank]) for time in (arrived, left)]
                rows.append((rank, number, seq, round(own[0]), round(own[1]) - round(own[0])))
    # Times of a trace begin at 0.
    first = min(row[3] for row in rows)
    rows = sorted((*row[:3], row[3] - first, row[4]) for row in rows)
    columns = list(zip(*rows, strict=True))
    data: dict[str, object] = {
        "rank": columns[0], "process_set": columns[1], "seq": columns[2], "kind": ["allreduce"] * len(rows),
        "op": [""] * len(rows), "dtype": [""] * len(rows), "algorithm": ["nccl"] * len(rows), "nbytes": [1] * len(rows),
        "tensors": [1] * len(rows), "submitted_ns": columns[3], "negotiated_ns": [-1] * len(rows), "start_ns": columns[3],
        "dur_ns": columns[4], "copy_ns": [0] * len(rows),
    }  # fmt: skip
    ranks = tuple(range(len(offsets)))
    return Trace(
        meta=TraceMeta(
            format="made up", files=(), ranks=ranks, size=len(ranks), events=0, dropped={},
            clock=Clock(method="none", uncertainty_ns=0), known_categories=frozenset(),
        ),
        spans=make_table(SPAN_COLUMNS), collectives=make_table(COLLECTIVE_COLUMNS, data), tensors=make_table(TENSOR_COLUMNS),
        arrivals=make_table(ARRIVAL_COLUMNS), steps=make_table(STEP_COLUMNS), counters=make_table(COUNTER_COLUMNS),
    )  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(
    offset=st.integers(-(10**12), 10**12),
    count=st.integers(1, 200),
    seed=st.integers(0, 2**32 - 1),
)
def test_an_offset_is_found_within_what_is_claimed(offset: int, count: int, seed: int) -> None:
    """Clocks that run equally fast: the true offset lies within the uncertainty, always."""
    trace = make_trace([0, offset], [0.0, 0.0], count, seed)
    clocks, unknown = find_clocks(trace)
    assert not unknown
    found = clocks[1]
    middle = float(trace.collectives[trace.collectives["rank"] == 1]["start_ns"].mean())
    assert abs(found.offset_ns + found.drift * middle - offset) <= found.uncertainty_ns + 2
    assert found.uncertainty_ns < 5_000_000


@settings(max_examples=examples(30), deadline=None)
@given(
    offset=st.integers(-(10**10), 10**10),
    drift=st.floats(-2e-4, 2e-4),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_drift_is_found(offset: int, drift: float, seed: int) -> None:
    """200 ppm over 20 s are 4 ms: aligned times are right to a fraction of that, at both ends."""
    trace = align(make_trace([0, offset], [0.0, drift], 200, seed))
    assert trace.meta.clock.method == "collectives"
    table = trace.collectives
    left = (table["start_ns"] + table["dur_ns"]).to_numpy()
    mine, other = left[table["rank"] == 0], left[table["rank"] == 1]
    assert np.abs(mine - other).max() <= trace.meta.clock.uncertainty_ns + 200_000
    assert abs(np.median(mine[:20] - other[:20])) < 60_000
    assert abs(np.median(mine[-20:] - other[-20:])) < 60_000
    assert int(trace.collectives["start_ns"].min()) == 0


def test_ranks_that_never_meet_are_compared_through_others() -> None:
    """0 meets 1, 1 meets 2: uncertainties add up."""
    trace = make_trace([0, 5_000_000, -7_000_000], [0.0] * 3, 50, 1, groups=[[0, 1], [1, 2]])
    clocks, unknown = find_clocks(trace)
    assert not unknown
    assert abs(clocks[2].offset_ns + clocks[2].drift * 10e9 + 7_000_000) <= clocks[2].uncertainty_ns
    assert clocks[2].uncertainty_ns > clocks[1].uncertainty_ns


def test_what_does_not_fit_together_is_not_aligned() -> None:
    """Other collectives under the same numbers: nothing is moved, and it is said."""
    trace = make_trace([0, 0], [0.0, 0.0], 40, 2)
    table = trace.collectives.copy()
    of_one = table["rank"] == 1
    table.loc[of_one, "start_ns"] = table.loc[of_one, "start_ns"].to_numpy()[::-1]
    broken = replace(trace, collectives=table)
    aligned = align(broken)
    assert aligned.meta.clock.method == "none"
    assert any("not aligned: rank 1" in note for note in aligned.meta.notes)
    assert aligned.collectives["start_ns"].tolist() == broken.collectives["start_ns"].tolist()


def test_nothing_is_known_from_nothing() -> None:
    """No collective at all."""
    empty = np.array([], np.int64)
    assert compare(empty, empty, empty, empty) is None


@pytest.mark.parametrize("pattern", ["rank?", "trace_filter_sampled_rank-?"])
def test_two_real_ranks_are_aligned_or_it_is_said(pattern: str, real_traces: Callable[[str], list[Path]]) -> None:
    """Two ranks on one host, and two of a job of 128 on different hosts."""
    paths = real_traces(f"kineto/{pattern}.json.gz")
    if not paths:
        pytest.skip("traces of others are absent: set TL_SHARED to the folder that holds traces/")
    trace = open_trace(paths)
    if trace.meta.clock.method == "collectives":
        assert trace.meta.clock.uncertainty_ns > 0
        assert set(trace.meta.clock.ranks) == {0, 1}
    else:
        assert any("not aligned" in note for note in trace.meta.notes)


@pytest.mark.parametrize("method", ["single", "runtime"])
def test_clocks_that_are_aligned_are_left_alone(method: str) -> None:
    """By the runtime, or since there is only one."""
    trace = make_trace([0, 9], [0.0, 0.0], 5, 3)
    trace = replace(trace, meta=replace(trace.meta, clock=Clock(method=method, uncertainty_ns=5)))
    assert align(trace) is trace
