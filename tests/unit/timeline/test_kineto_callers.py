"""Who asked for the collectives of a Kineto trace."""

import json
from pathlib import Path
from typing import Any

from tlkit.timeline import open_trace


def host(name: str, start: float, dur: float, thread: int) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": thread, "ts": start, "dur": dur}


def launched(kernel: str, at: float, thread: int, number: int) -> list[dict[str, Any]]:
    """A kernel 5 µs after its launch."""
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": thread, "ts": at, "dur": 1}
    device = {"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7, "ts": at + 5, "dur": 3}
    return [
        {**launch, "args": {"correlation": number}},
        {**device, "args": {"correlation": number, "stream": 7, "device": 0}},
    ]


def test_the_host_around_the_launch_says_who_asked(tmp_path: Path) -> None:
    """Backward: gradients, and what FSDP gathers; a c10d operator of the script; DDP's buffers; and nothing at all."""
    events = [
        host("autograd::engine::evaluate_function: AccumulateGrad", 100, 50, thread=2),
        host("c10d::allreduce_", 110, 8, thread=2),
        *launched("ncclDevKernel_AllReduce_Sum_f32", 112, thread=2, number=1),
        host("c10d::_allgather_base_", 130, 8, thread=2),
        *launched("ncclDevKernel_AllGather_RING_LL", 132, thread=2, number=2),
        host("c10d::allreduce_", 140, 8, thread=1),
        *launched("ncclDevKernel_AllReduce_Sum_f32", 142, thread=1, number=3),
        host("DistributedDataParallel.forward", 200, 50, thread=1),
        host("c10d::broadcast_", 210, 8, thread=1),
        *launched("ncclDevKernel_Broadcast_RING_LL", 212, thread=1, number=4),
        *launched("ncclDevKernel_AllReduce_Sum_f32", 300, thread=1, number=5),
    ]
    content = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events}
    (tmp_path / "rank0.json").write_text(json.dumps(content))
    table = open_trace(tmp_path / "rank0.json").collectives.sort_values("start_ns")

    assert list(zip(table["kind"], table["caller"], strict=True)) == [
        ("allreduce", "gradient"), ("allgather", "parameters"), ("allreduce", "user"), ("broadcast", "parameters"),
        ("allreduce", ""),
    ]  # fmt: skip


def test_what_is_waited_for_between_the_update_and_the_next_forward_was_called_by_the_script(tmp_path: Path) -> None:
    """Gloo's own threads show no caller: two metrics after the update, one that is not waited for, and a bucket of backward."""
    events: list[dict[str, Any]] = []
    for step in range(3):
        at = 10_000 * step
        events += [
            host("DistributedDataParallel.forward", at, 1_000, thread=1),
            host("autograd::engine::evaluate_function: MmBackward0", at + 1_100, 900, thread=1),
            host("c10d::allreduce_", at + 2_050, 5, thread=1),
            host("gloo:all_reduce", at + 2_060, 500, thread=9),
            host("Optimizer.step#SGD.step", at + 3_000, 500, thread=1),
            host("c10d::allreduce_", at + 4_000, 5, thread=1),
            host("gloo:all_reduce", at + 4_010, 500, thread=9),
            host("c10d::allreduce_", at + 4_600, 5, thread=1),
            host("gloo:all_reduce", at + 4_610, 500, thread=9),
            host("c10d::allreduce_", at + 5_200, 5, thread=1),
            host("gloo:all_reduce", at + 5_210, 500, thread=9),
            host("aten::add", at + 5_220, 600, thread=1),
        ]
    content = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": events}
    (tmp_path / "rank0.json").write_text(json.dumps(content))
    table = open_trace(tmp_path / "rank0.json").collectives.sort_values("start_ns")

    assert (
        list(zip(table["caller"], table["blocking"], strict=True)) == [("", -1), ("user", 1), ("user", 1), ("", -1)] * 3
    )


def test_ddp_on_gpus(shared_traces: Path) -> None:
    """What the reducer launches from autograd's thread is gradients, what DDP broadcasts before a forward is not."""
    table = open_trace(shared_traces / "kineto" / "nccl_parser_config_nccl_data.json.gz").collectives

    assert table.groupby(["kind", "caller"], observed=True).size().to_dict() == {
        ("allreduce", "gradient"): 15, ("broadcast", "parameters"): 6,
    }  # fmt: skip
