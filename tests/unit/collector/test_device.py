"""Traces that show a device: what its time goes to."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tlkit.collector import Analysis, analyze, make_report
from tlkit.collector.commands.analyze import main
from tlkit.collector.model import device
from tlkit.collector.model.idle import REASONS
from tlkit.collector.reports import figures_device

MS = 1000


def kineto(path: Path, events: list[dict[str, Any]], *, steps: int, step_ms: float) -> Path:
    """A trace of `steps` equal steps: `events` are repeated in each, with `ts` and `dur` in ms."""
    written = []
    for number in range(steps):
        base = 1 + number * step_ms
        for event in [{"cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": 0, "dur": step_ms}, *events]:
            moved = {"ph": "X", "pid": 1, "tid": 1, **event, "ts": (base + event["ts"]) * MS, "dur": event["dur"] * MS}
            if "correlation" in event:
                numbered = {"correlation": event["correlation"] + 1000 * number, "stream": event["tid"]}
                moved["args"] = event.get("args", {}) | numbered
            written.append(moved)
    header = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": written}
    path.write_text(json.dumps(header))
    return path


def launch(at: float, number: int, tid: int = 1) -> dict[str, Any]:
    return {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at, "dur": 0.01, "correlation": number, "tid": tid}


def kernel(name: str, at: float, dur: float, number: int, stream: int = 7) -> dict[str, Any]:
    return {"cat": "kernel", "name": name, "ts": at, "dur": dur, "correlation": number, "tid": stream, "pid": 0}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Steps of 100 ms: 10 of loading, 20 forward, 30 backward with 10 of communication under it and 15 after, 5 optimizer."""
    events = [
        {"cat": "user_annotation", "name": "enumerate(DataLoader)#_SingleProcess.__next__", "ts": 0, "dur": 10},
        launch(10, 1), kernel("gemm", 11, 20, 1),
        {"cat": "cpu_op", "name": "autograd::engine::evaluate_function: MmBackward0", "ts": 31, "dur": 5, "tid": 2},
        launch(32, 2, tid=2), kernel("gemm", 33, 30, 2),
        launch(34, 3, tid=2), kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 53, 25, 3, stream=20),
        {"cat": "user_annotation", "name": "Optimizer.step#SGD.step", "ts": 79, "dur": 3},
        launch(80, 4), kernel("sgd", 81, 5, 4),
    ]  # fmt: skip
    return kineto(tmp_path / "t.json", events, steps=20, step_ms=100)


def test_every_moment_of_a_step_goes_to_one_part(trace: Path) -> None:
    """And they sum to the step."""
    analysis = analyze(trace)
    parts = {name: values.mean() / 1e6 for name, values in analysis.facts.breakdown.parts_ns.items() if values.any()}
    assert analysis.facts.breakdown.on_device
    assert parts == pytest.approx(
        {"data": 10, "forward": 20, "backward": 30, "collective": 15, "optimizer": 5, "idle": 20}, abs=1e-3
    )
    assert analysis.facts.breakdown.hidden_ns.mean() / 1e6 == pytest.approx(10, abs=1e-3)


def test_a_device_that_waits_for_the_host_is_named(tmp_path: Path) -> None:
    """60 of 100 ms idle, and nothing is known of the host; with a synchronising call over it that call is the reason."""
    events = [launch(1, 1), kernel("gemm", 2, 20, 1), launch(80, 2), kernel("gemm", 80, 20, 2)]
    verdict = analyze(kineto(tmp_path / "a.json", events, steps=20, step_ms=100)).verdict
    assert (verdict.class_, verdict.cause) == ("compute", "device-idle")
    assert verdict.predicted_gain == pytest.approx(0.58, abs=0.02)
    waits = {"cat": "cuda_runtime", "name": "cudaStreamSynchronize", "ts": 2, "dur": 60}
    verdict = analyze(kineto(tmp_path / "b.json", [*events, waits], steps=20, step_ms=100)).verdict
    assert verdict.cause == "device-idle-synchronisation"
    assert ".item()" in verdict.remedy


def test_communication_that_nobody_computes_beside_is_exposed_on_cpus_as_well(tmp_path: Path) -> None:
    """Other profilers have no span for waiting."""
    events = [
        {"cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 40},
        {"cat": "user_annotation", "name": "gloo:all_reduce", "ts": 30, "dur": 50, "tid": 3},
    ]
    analysis = analyze(kineto(tmp_path / "t.json", events, steps=20, step_ms=100))
    parts = {name: values.mean() / 1e6 for name, values in analysis.facts.breakdown.parts_ns.items() if values.any()}
    assert parts == pytest.approx({"forward": 40, "collective": 40, "other": 20}, abs=1e-3)


def on_processors(tmp_path: Path, *, first_ms: float, last_ms: float, loop_ms: float = 0.0) -> Analysis:
    """A step of DDP: code of the loop, forward whose operators begin after `first_ms`, and a last bucket of `last_ms`."""
    begin = 1 + loop_ms
    at = begin + first_ms
    events = [
        {"cat": "user_annotation", "name": "DistributedDataParallel.forward", "ts": begin, "dur": first_ms + 20},
        {"cat": "cpu_op", "name": "aten::mm", "ts": at, "dur": 19.9},
        {"cat": "cpu_op", "name": "autograd::engine::evaluate_function: MmBackward0", "ts": at + 20, "dur": 30},
        {"cat": "cpu_op", "name": "c10d::allreduce_", "ts": at + 30, "dur": 0.01},
        {"cat": "user_annotation", "name": "gloo:all_reduce", "ts": at + 30, "dur": 5, "tid": 3},
        {"cat": "cpu_op", "name": "c10d::allreduce_", "ts": at + 49.9, "dur": 0.01},
        {"cat": "user_annotation", "name": "gloo:all_reduce", "ts": at + 50, "dur": last_ms, "tid": 3},
        {"cat": "user_annotation", "name": "Optimizer.step#SGD.step", "ts": at + 50 + last_ms, "dur": 3},
    ]
    step_ms = at + 54 + last_ms
    return analyze(kineto(tmp_path / "t.json", events, steps=20, step_ms=step_ms))


def test_forward_without_operators_is_told_in_a_profile_on_processors(tmp_path: Path) -> None:
    """20 ms of a step of 76 pass between the begin of forward and its first operator."""
    verdict = on_processors(tmp_path, first_ms=20, last_ms=1).verdict

    assert verdict.cause == "blocked-forward"
    assert verdict.predicted_gain == pytest.approx(20 / 76, abs=0.02)


def test_one_long_hole_of_the_loop_is_host_code_however_little_is_ordinary(tmp_path: Path) -> None:
    """8 ms of 64: as many short holes they would be what Python needs between operators."""
    verdict = on_processors(tmp_path, first_ms=0, last_ms=1, loop_ms=8).verdict

    assert verdict.cause == "host-code"


def test_late_buckets_of_a_profile_are_told_by_their_time(tmp_path: Path) -> None:
    """Nobody knows their sizes; the one that is asked for when backward ends takes 30 of 35 ms."""
    analysis = on_processors(tmp_path, first_ms=0, last_ms=30)

    assert analysis.verdict.cause == "late-gradients"
    assert analysis.verdict.evidence["late_bytes_share"] == pytest.approx(30 / 35, abs=0.01)


def test_a_profile_on_processors_in_which_nothing_stands_out_has_no_finding(tmp_path: Path) -> None:
    """Its last bucket takes 1 ms."""
    findings = on_processors(tmp_path, first_ms=0, last_ms=1).findings

    assert all(finding.predicted_gain < 0.05 for finding in findings)


def test_real_traces_of_profilers_are_reported(
    real_traces: Callable[[str], list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is in them: a report, no error, no warning of numpy's."""
    for path in [*real_traces("kineto/*"), *real_traces("nsight/*")]:
        assert main([str(path)]) == 0
        assert main([str(path), "--json", "-"]) == 0
        capsys.readouterr()


def test_ranks_of_a_large_run_are_looked_at_by_several_threads(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same to say, to the last number."""
    few = make_report(analyze(trace))
    monkeypatch.setattr(device, "_MANY", 0)

    assert make_report(analyze(trace)) == few


def test_reasons_of_idle_time_have_a_grey_each(trace: Path) -> None:
    """However many there are, no two look the same."""
    assert len(set(figures_device._GREYS)) == len(figures_device._GREYS) >= len(REASONS)
    assert figures_device.busy(_device(analyze(trace)))["data"]


def _device(analysis: Analysis) -> device.Device:
    assert analysis.device is not None
    return analysis.device
