"""Simulated pipelines, and what is said of them."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tlkit.collector import analyze
from tlkit.timeline import open_trace

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "diagnosis"))

from simulator.stages import SLOW_RANK, UNEQUAL, Pipeline, mean_step_ns, play_stages, write_stages

MS = 1_000_000


def even(**changes: Any) -> Pipeline:
    """Three stages of 10 ms and 20 ms, four micro-batches, no noise, messages that cost nothing."""
    pipeline = Pipeline(
        kind="", seed=1, forward_ns=(10.0 * MS,) * 3, extra_ns=(0.0,) * 3, optimizer_ns=0, micro_batches=4, steps=20,
        nbytes=1000, latency_ns=0, bytes_per_ns=1e9, sigma=0.0,
    )  # fmt: skip
    return replace(pipeline, **changes)


def test_a_step_is_the_micro_batches_and_the_bubble() -> None:
    """(4 + 2) turns of 30 ms; a stage without work waits in two of six turns."""
    assert mean_step_ns(play_stages(even())) == pytest.approx(6 * 30 * MS, rel=0.01)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Each message has a sender and a receiver, and the clock of the job."""
    pipeline = even()
    write_stages(pipeline, play_stages(pipeline), tmp_path)
    trace = open_trace(tmp_path)
    trace.check()
    sent = trace.messages[trace.messages["direction"] == "send"]

    assert len(trace.messages) == 2 * len(sent) == 2 * 2 * 2 * 4 * 20
    assert not trace.meta.dropped


def test_a_stage_with_more_layers_is_unequal(tmp_path: Path) -> None:
    """Its forward and its backward are twice as long."""
    pipeline = even(kind=UNEQUAL, forward_ns=(10.0 * MS, 20.0 * MS, 10.0 * MS))
    write_stages(pipeline, play_stages(pipeline), tmp_path)
    found = {one.cause: one for one in analyze(tmp_path).findings}
    gain = 1 - mean_step_ns(play_stages(pipeline.healed())) / mean_step_ns(play_stages(pipeline))

    assert pipeline.slow == found["unequal-stages"].ranks == (1,)
    assert found["unequal-stages"].predicted_gain == pytest.approx(gain, abs=0.02)
    assert "slow-forward" not in found


def test_a_rank_whose_forward_alone_is_slow_has_no_layers_to_give_away(tmp_path: Path) -> None:
    """It sleeps for 15 ms in each forward pass."""
    pipeline = even(kind=SLOW_RANK, extra_ns=(0.0, 0.0, 15.0 * MS))
    write_stages(pipeline, play_stages(pipeline), tmp_path)
    analysis = analyze(tmp_path)
    gain = 1 - mean_step_ns(play_stages(pipeline.healed())) / mean_step_ns(play_stages(pipeline))
    found = next(one for one in analysis.findings if one.cause == "slow-forward")

    assert (found.class_, found.ranks) == ("straggler", (2,))
    assert found.predicted_gain == pytest.approx(gain, abs=0.02)
    assert analysis.verdict.cause == "slow-forward"
