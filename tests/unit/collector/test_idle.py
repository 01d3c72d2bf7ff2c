"""Why a device is idle: one made-up trace for each reason, and real ones against a walk through their JSON."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.unit.collector.test_device import kernel, kineto, launch
from tlkit.collector import Analysis, analyze
from tlkit.collector.model.host_calls import read_host
from tlkit.collector.model.idle import REASONS, divide_idle
from tlkit.collector.model.intervals import intersect, normalise, total
from tlkit.collector.reports.report import make_report
from tlkit.timeline import open_trace
from tlkit.timeline.model.trace import LAUNCH_COLUMNS, SPAN_COLUMNS, make_table

Event = dict[str, Any]


def call(name: str, at: float, dur: float, tid: int = 1) -> Event:
    return {"cat": "cuda_runtime", "name": name, "ts": at, "dur": dur, "tid": tid}


def operator(name: str, at: float, dur: float, tid: int = 1) -> Event:
    return {"cat": "cpu_op", "name": name, "ts": at, "dur": dur, "tid": tid}


def copy(way: str, at: float, dur: float, number: int, stream: int = 7) -> Event:
    return {**kernel(f"Memcpy {way}", at, dur, number, stream), "cat": "gpu_memcpy"}


def of_steps(tmp_path: Path, events: list[Event]) -> Analysis:
    return analyze(kineto(tmp_path / "t.json", events, steps=20, step_ms=100))


def idle_ms(analysis: Analysis) -> dict[str, float]:
    """By reason, of a step, without those that take no time."""
    assert analysis.device is not None
    found = {reason: float(ns.mean()) / 1e6 for reason, ns in analysis.device.idle_ns.items() if ns.any()}
    assert sum(found.values()) == pytest.approx(float(analysis.facts.part("idle").mean()) / 1e6)
    return found


def test_many_short_gaps_are_launches(tmp_path: Path) -> None:
    """90 kernels of 0.2 ms, each launched 0.8 ms after the one before has ended."""
    events = []
    for number in range(90):
        events += [
            operator("aten::batch_norm", 1 + number, 0.95),
            launch(1 + number + 0.7, number + 1),
            kernel("bn", 1 + number + 0.71, 0.2, number + 1),
        ]
    analysis = of_steps(tmp_path, events)
    assert max(idle_ms(analysis), key=idle_ms(analysis).__getitem__) == "launch"
    assert analysis.verdict.cause == "device-idle-launch"
    assert "CUDA graphs" in analysis.verdict.remedy
    assert "aten::batch_norm" in analysis.verdict.sentence


def test_work_of_the_host_in_one_long_gap_is_no_slow_launch(tmp_path: Path) -> None:
    """50 ms in an operator of the processor between two kernels."""
    analysis = of_steps(
        tmp_path,
        [launch(1, 1), kernel("gemm", 1.01, 40, 1), operator("aten::unflatten_dense_tensors", 30, 60),
         launch(91, 2), kernel("gemm", 91.01, 8, 2)],
    )  # fmt: skip
    assert idle_ms(analysis)["host-work"] == pytest.approx(49, abs=0.1)
    assert analysis.verdict.cause == "device-idle-host-work"
    assert "aten::unflatten_dense_tensors" in analysis.verdict.sentence
    assert "broadcast_buffers=False" in analysis.verdict.remedy


def test_a_blocking_copy_is_named_with_its_operator(tmp_path: Path) -> None:
    """The copy from the device blocks until 60 ms; the kernel before has ended at 21."""
    analysis = of_steps(
        tmp_path,
        [launch(1, 1), kernel("gemm", 1.01, 20, 1), operator("aten::to", 2, 60), call("cudaMemcpyAsync", 2.1, 59),
         launch(62.5, 2), kernel("gemm", 62.51, 36, 2)],
    )  # fmt: skip
    assert idle_ms(analysis)["blocking-copy"] == pytest.approx(41.5, abs=0.2)
    assert analysis.verdict.cause == "device-idle-blocking-copy"
    assert "cudaMemcpyAsync under aten::to" in analysis.verdict.sentence
    assert "pinned memory" in analysis.verdict.remedy


def test_what_follows_a_synchronisation_belongs_to_it(tmp_path: Path) -> None:
    """Blocked from 2 to 21 ms, the host needs until 31 to launch: without the wait it would have done so before 21."""
    analysis = of_steps(
        tmp_path,
        [launch(1, 1), kernel("gemm", 1.01, 20, 1), operator("aten::item", 2, 19.2), call("cudaStreamSynchronize", 2.1, 19),
         operator("aten::mm", 21.5, 9.4), launch(30.9, 2), kernel("gemm", 31, 68, 2)],
    )  # fmt: skip
    assert idle_ms(analysis)["synchronisation"] == pytest.approx(10, abs=0.2)
    assert analysis.findings[0].cause == "device-idle-synchronisation"
    assert "aten::item" in analysis.findings[0].sentence


def test_a_long_hole_after_a_synchronisation_is_not_its_fault(tmp_path: Path) -> None:
    """The loss is read when the device is through anyway; then nothing is recorded for 30 ms."""
    analysis = of_steps(
        tmp_path,
        [launch(1, 1), kernel("gemm", 1.01, 60, 1), operator("aten::item", 2, 59.2), call("cudaStreamSynchronize", 2.1, 59),
         operator("aten::mm", 91, 0.4), launch(91.2, 2), kernel("gemm", 91.3, 8, 2)],
    )  # fmt: skip
    assert idle_ms(analysis)["host-elsewhere"] > 29
    assert analysis.verdict.cause == "device-idle"


def test_reasons_that_are_worth_nothing_alone_are_told_together(tmp_path: Path) -> None:
    """4 ms of a step blocked in a copy, and 4 ms in which the host computes."""
    analysis = of_steps(
        tmp_path,
        [operator("aten::copy_", 0.1, 4), call("cudaMemcpyAsync", 0.2, 3.8), launch(4.2, 1), kernel("gemm", 4.3, 40, 1),
         operator("aten::sort", 44, 4.2), launch(48.3, 2), kernel("gemm", 48.4, 51, 2)],
    )  # fmt: skip
    gains = {finding.cause: finding.predicted_gain for finding in analysis.findings}

    assert analysis.verdict.cause == "device-idle"
    assert analysis.verdict.evidence["by_reason_ns"]
    assert all(gain <= 0.05 for cause, gain in gains.items() if cause != "device-idle")


def test_preparing_the_input_is_no_launch(tmp_path: Path) -> None:
    """An annotation and an operator that decode video between two kernels."""
    analysis = of_steps(
        tmp_path,
        [launch(1, 1), kernel("gemm", 1.01, 30, 1),
         {"cat": "user_annotation", "name": "preprocess_video", "ts": 20, "dur": 60}, operator("aten::mul", 25, 40),
         launch(81, 2), kernel("gemm", 81.01, 18, 2)],
    )  # fmt: skip
    assert idle_ms(analysis)["input"] == pytest.approx(49, abs=0.2)
    assert (analysis.verdict.class_, analysis.verdict.cause) == ("data", "device-idle-input")


def test_the_host_is_not_blamed_for_work_in_the_queue(tmp_path: Path) -> None:
    """Launched at 2 ms and begun at 70, while the host is blocked in a copy: it cannot shorten this."""
    analysis = of_steps(
        tmp_path,
        [launch(1, 1), kernel("gemm", 1.01, 20, 1), launch(2, 2), kernel("gemm", 70, 29, 2),
         operator("aten::to", 3, 80), call("cudaMemcpyAsync", 3.1, 79)],
    )  # fmt: skip
    assert idle_ms(analysis)["queued"] == pytest.approx(49, abs=0.2)
    assert (analysis.verdict.class_, analysis.verdict.cause) == ("unknown", "device-idle-queued")
    assert analysis.verdict.predicted_gain == 0
    assert "cudaMemcpyAsync under aten::to" in analysis.verdict.sentence


def test_memory_asked_for_in_the_loop_is_named(tmp_path: Path) -> None:
    """cudaMalloc waits for the device."""
    analysis = of_steps(
        tmp_path,
        [
            launch(1, 1),
            kernel("gemm", 1.01, 20, 1),
            call("cudaMalloc", 2, 58),
            launch(60.5, 2),
            kernel("gemm", 60.51, 38, 2),
        ],
    )
    assert analysis.verdict.cause == "device-idle-synchronisation"
    assert "expandable_segments" in analysis.verdict.remedy


def test_a_copy_under_a_kernel_costs_nothing(tmp_path: Path) -> None:
    """And one beside it does."""
    events = [
        launch(1, 1),
        kernel("gemm", 1.01, 98, 1),
        launch(2, 2),
        copy("HtoD (Pinned -> Device)", 10, 30, 2, stream=20),
    ]
    analysis = of_steps(tmp_path, events)
    assert not analysis.facts.part("h2d").any()
    assert analysis.device is not None
    assert analysis.device.copies_ns["HtoD"] > 0
    assert analysis.device.exposed_copies_ns["HtoD"] == 0
    assert not [finding for finding in analysis.findings if finding.cause == "slow-copies-to-device"]
    beside = [
        launch(1, 1),
        kernel("gemm", 1.01, 60, 1),
        launch(2, 2),
        copy("HtoD (Pinned -> Device)", 61.5, 30, 2, stream=20),
    ]
    verdict = of_steps(tmp_path, beside).verdict
    assert (verdict.class_, verdict.cause) == ("data", "slow-copies-to-device")
    assert "no kernel hides" in verdict.sentence


@pytest.mark.parametrize("dtype", ["BFloat16", "Half", "Float"])
def test_exposed_nccl_is_communication_whatever_its_type(tmp_path: Path, dtype: str) -> None:
    """60 of 100 ms in a collective of half precision, behind 20 ms of backward: those 20 ms could hide some of it."""
    nccl = kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 39, 60, 3, stream=20)
    nccl["args"] = {"Collective name": "allreduce", "dtype": dtype, "In msg nelems": 1 << 24, "Group size": 2}
    analysis = of_steps(
        tmp_path,
        [launch(1, 1), kernel("gemm", 1.01, 17, 1),
         operator("autograd::engine::evaluate_function: MmBackward0", 18, 2, tid=2), launch(18.5, 2, tid=2),
         kernel("gemm", 18.6, 20, 2), launch(19, 3, tid=2), nccl],
    )  # fmt: skip
    found = next(finding for finding in analysis.findings if finding.cause == "exposed-nccl")
    assert analysis.verdict.class_ == "communication"
    assert found.predicted_gain == pytest.approx(0.20, abs=0.03)
    assert "60.0 ms of each 100 ms" in found.sentence
    assert "communicate less often" in found.remedy


def test_kernels_of_old_profilers_belong_to_backward(tmp_path: Path) -> None:
    """Before 2022 nodes of autograd stood alone; what is launched between them on autograd's thread is backward, too."""
    events = [
        launch(1, 1), kernel("conv", 1.1, 10, 1),
        operator("CudnnConvolutionBackward", 12, 2, tid=2), launch(13, 2, tid=2), kernel("dgrad", 13.1, 20, 2),
        launch(15, 3, tid=2), kernel("add", 33.2, 5, 3),
        {"cat": "user_annotation", "name": "Optimizer.step#SGD.step", "ts": 40, "dur": 3}, launch(41, 4), kernel("sgd", 41.1, 4, 4),
    ]  # fmt: skip
    analysis = of_steps(tmp_path, events)
    assert float(analysis.facts.part("backward").mean()) / 1e6 == pytest.approx(25, abs=0.01)
    assert float(analysis.facts.part("forward").mean()) / 1e6 == pytest.approx(10, abs=0.01)


def test_kernels_are_described(tmp_path: Path) -> None:
    """Names, operators, small ones, tensor cores and what a checkpoint computes once more."""
    node = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
    events = [
        operator("aten::linear", 1, 2), launch(1.5, 1), kernel("cutlass_80_tensorop_s16816gemm_bf16", 1.6, 40, 1),
        operator("aten::relu", 4, 1), launch(4.5, 2), kernel("elementwise", 42, 0.005, 2),
        operator(node, 10, 20, tid=2), operator("CheckpointFunctionBackward", 10.1, 19.8, tid=2),
        launch(11, 3, tid=2), kernel("ampere_sgemm_128x64_nn", 43, 10, 3),
        operator("autograd::engine::evaluate_function: AddmmBackward0", 15, 5, tid=2),
        launch(16, 4, tid=2), kernel("ampere_sgemm_128x64_nt", 54, 30, 4),
    ]  # fmt: skip
    device = of_steps(tmp_path, events).device
    assert device is not None
    kernels = device.kernels
    assert kernels.by_name[0].name == "cutlass_80_tensorop_s16816gemm_bf16"
    assert kernels.tensor_ratio == pytest.approx(40 / 80, abs=0.01)
    assert kernels.small_ratio == pytest.approx(0.25)
    assert kernels.recompute_ns / device.count / 1e6 == pytest.approx(10)
    by_operator = {row.name: row.total_ns / device.count / 1e6 for row in kernels.by_operator}
    assert by_operator == pytest.approx({"aten::linear": 40, "CheckpointFunctionBackward": 40, "aten::relu": 0.005})


def inference(path: Path, events: list[Event]) -> Path:
    """A trace without steps; `ts` and `dur` in ms."""
    written = []
    for event in events:
        moved = {"ph": "X", "pid": 1, "tid": 1, **event, "ts": event["ts"] * 1000, "dur": event["dur"] * 1000}
        if "correlation" in event:
            moved["args"] = {"correlation": event["correlation"], "stream": event["tid"]}
        written.append(moved)
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": written}))
    return path


def test_a_recording_without_steps_has_a_report_of_its_own(tmp_path: Path) -> None:
    """217 ms of preparing before the first kernel, then a busy device; nobody speaks of an optimizer."""
    events = [operator("aten::_upsample_bicubic2d_aa", 0, 217), launch(217.5, 1), kernel("gemm", 217.6, 400, 1)]
    analysis = analyze(inference(tmp_path / "t.json", events))
    assert (analysis.verdict.class_, analysis.verdict.cause) == ("data", "device-idle-input")
    assert "217 ms of 618 ms recorded" in analysis.verdict.sentence
    assert "_upsample_bicubic2d_aa" in analysis.verdict.sentence
    report = make_report(analysis)["device"]
    assert report["has_steps"] is False
    assert report["idle_ns"]["input"] == pytest.approx(217e6, rel=0.01)
    assert report["kernels"]["by_name"][0]["name"] == "gemm"
    busy = [launch(0, 1), kernel("gemm", 0.01, 300, 1)]
    verdict = analyze(inference(tmp_path / "busy.json", busy)).verdict
    assert verdict.class_ == "healthy"
    assert "busy for 100.0%" in verdict.sentence


def test_batches_of_an_inference_server_are_steps(tmp_path: Path) -> None:
    """Eleven annotations, 50 ms apart, of which the device sees its kernels later: ten steps, of which the first is left out."""
    events = []
    for number in range(11):
        name = f"execute_{number}_context_1(sq1)_generation_0()"
        events += [
            {"cat": "user_annotation", "name": name, "ts": 50 * number, "dur": 4},
            operator("vllm::moe_forward", 50 * number + 1, 2), launch(50 * number + 2, number + 1),
            kernel("moe", 50 * number + 20, 45, number + 1),
        ]  # fmt: skip
    analysis = analyze(inference(tmp_path / "t.json", events))
    assert analysis.facts.steps.count == 9
    assert analysis.device is not None
    assert analysis.device.has_steps
    assert analysis.facts.mean_step_ns == pytest.approx(50e6)
    assert float(analysis.facts.part("idle").mean()) == pytest.approx(5e6)


def test_a_filtered_file_is_said_to_be_one(tmp_path: Path) -> None:
    """Of 200,000 numbered operators 200 are left."""
    events = [launch(0, 1), kernel("gemm", 0.01, 300, 1)]
    events += [
        {**operator("aten::mm", number, 0.5), "args": {"External id": 1 + 1000 * number}} for number in range(200)
    ]
    notes = open_trace(inference(tmp_path / "t.json", events)).meta.notes
    assert any("filtered or sampled" in note for note in notes)


@pytest.mark.parametrize("seed", range(20))
def test_reasons_divide_idle_time_without_remainder(seed: int) -> None:
    """Whatever the host does, and however things were launched: disjoint, and together the idle time."""
    draws = np.random.default_rng(seed)

    def spans(count: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
        return draws.integers(0, 20_000_000, count), draws.integers(1, longest, count)

    names = [
        "cudaStreamSynchronize",
        "cudaMemcpyAsync",
        "aten::mm",
        "preprocess",
        "gloo:allreduce",
        "a.py(1): f",
        "## x ##",
    ]
    starts, took = spans(60, 2_000_000)
    table = make_table(
        SPAN_COLUMNS,
        {
            "rank": np.zeros(60), "lane": draws.choice(["main", "autograd"], 60), "lane_kind": ["host"] * 60,
            "category": ["other"] * 60, "name": draws.choice(names, 60), "start_ns": starts, "dur_ns": took,
            "args_row": np.full(60, -1),
        },
    )  # fmt: skip
    at, length = spans(30, 1_500_000)
    idle = normalise(at, at + length)
    begun = idle[:, 1]
    launches = make_table(
        LAUNCH_COLUMNS,
        {
            "rank": np.zeros(len(begun)), "start_ns": begun, "thread": draws.choice(["main", "autograd", ""], len(begun)),
            "launched_ns": np.where(draws.random(len(begun)) < 0.2, -1, begun - draws.integers(1, 3_000_000, len(begun))),
            "call_ns": draws.integers(1, 50_000, len(begun)), "correlation": np.arange(len(begun)),
        },
    )  # fmt: skip
    for known in (launches, launches.iloc[:0]):
        found = divide_idle(idle, read_host(table), known)
        assert sorted(found) == sorted(REASONS)
        assert sum(total(moments) for moments in found.values()) == total(idle)
        assert total(normalise(*np.concatenate(list(found.values())).T)) == total(idle)
        assert all(total(intersect(moments, idle)) == total(moments) for moments in found.values())


def walk(path: Path) -> tuple[float, float, float]:
    """Idle, busy with kernels and exposed collectives between first and last activity of a device, ms: intervals in plain Python."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    device = [event for event in events if event.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}]

    def covered(chosen: list[Event]) -> float:
        length, until = 0.0, 0.0
        for begin, end in sorted((event["ts"], event["ts"] + event["dur"]) for event in chosen):
            length += max(end - max(begin, until), 0.0)
            until = max(until, end)
        return length / 1000

    own = [
        event
        for event in device
        if not (event["cat"] == "kernel" and re.search("nccl|rccl", event["name"], re.IGNORECASE))
    ]
    copies = [event for event in own if re.search("HtoD|Host -> Device", event["name"])]
    computing = [event for event in own if event not in copies] if copies else own
    whole = (max(event["ts"] + event["dur"] for event in device) - min(event["ts"] for event in device)) / 1000
    both = [event for event in device if event not in copies] if copies else device
    return whole - covered(device), covered(computing), covered(both) - covered(computing)


@pytest.mark.parametrize(
    "name",
    ["traces/kineto/eager_trace.json.gz", "traces/kineto/critical_path_cuda_event_sync_multi_stream_event_sync_trace.json.gz",
     "traces-more/kineto/inference_sglang_prefilldecode_Qwen3-8B.json.gz",
     "traces-more/kineto/inference_vllm_prefilldecode_piecewise_graph_execution.json.gz"],
)  # fmt: skip
def test_real_recordings_agree_with_a_plain_walk(shared_traces: Path, name: str) -> None:
    """Busy, exposed and idle time, from the first activity of the device to the last."""
    path = shared_traces.parent / name
    if not path.is_file():
        pytest.skip(f"{name} is absent")
    idle, computing, exposed = walk(path)
    analysis = analyze(path)
    device = analysis.device
    assert device is not None
    assert not device.has_steps
    parts = {part: float(ns.sum()) / 1e6 for part, ns in device.breakdown.parts_ns.items()}
    kernels = sum(parts[part] for part in ("forward", "backward", "optimizer", "other"))
    spans = open_trace(path).spans
    on_device = spans[spans["lane_kind"].isin(["compute", "communication"])]
    before = float(on_device["start_ns"].min() - spans["start_ns"].min()) / 1e6
    assert kernels == pytest.approx(computing, abs=0.05)
    assert parts["collective"] == pytest.approx(exposed, abs=0.05)
    assert parts["idle"] - before == pytest.approx(idle, abs=0.05)
    assert "optimizer" not in analysis.verdict.sentence


@pytest.mark.parametrize(
    ("name", "cause", "words"),
    [
        ("traces/kineto/nccl_parser_config_nccl_data.json.gz", "device-idle-launch", "aten::batch_norm"),
        (
            "traces/kineto/negative_queue_length_values_check_rank0.json.gz",
            "device-idle-queued",
            "cudaMemcpyAsync under aten::to",
        ),
        ("traces/kineto/trace_filter_sampled_rank-0.json.gz", "device-idle-queued", "missing from the recording"),
        ("traces/kineto/eager_trace.json.gz", "device-idle-launch", "vllm::moe_forward"),
        (
            "traces/kineto/amd_trace_mi250_minitoy_train_ROCm6_2_kineto.json.gz",
            "device-idle-host-work",
            "AccumulateGrad",
        ),
        ("traces-more/kineto/inference_sglang_prefilldecode_Qwen3-8B.json.gz", "nothing-found", "99.7%"),
        ("traces-more/kineto/inference_vllm_prefilldecode_piecewise_graph_execution.json.gz", "nothing-found", "98.4%"),
        ("traces/nsight/h100_2gpu_1s.sqlite.gz", "slow-copies-to-device", "921 ms of 969 ms"),
        ("traces-more/nsight/healthy_1pct.sqlite.gz", "nothing-found", "99.0%"),
    ],
)
def test_real_traces_are_judged_for_what_is_in_them(shared_traces: Path, name: str, cause: str, words: str) -> None:
    """See docs/real-traces.md for why."""
    path = shared_traces.parent / name
    if not path.is_file():
        pytest.skip(f"{name} is absent")
    verdict = analyze(path).verdict
    assert verdict.cause == cause
    assert words in verdict.sentence
    assert "0.00 ms" not in verdict.sentence


def test_launches_survive_selection_of_ranks(shared_traces: Path) -> None:
    """Two ranks of a job, one looked at."""
    paths = [shared_traces / "kineto" / f"trace_filter_sampled_rank-{rank}.json.gz" for rank in (0, 1)]
    analysis = analyze(paths, ranks=[1])
    assert set(analysis.trace.launches["rank"]) == {1}
    assert isinstance(analysis.trace.launches, pd.DataFrame)
