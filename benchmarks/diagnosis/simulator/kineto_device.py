"""Writes what torch.profiler sees of a job on GPUs: operators, calls of the CUDA runtime, kernels, copies, collectives."""

from pathlib import Path
from typing import Any, Final

from .device import BACKWARD, COPY, NCCL, OPTIMIZER, DeviceRecording, Kernel
from .kineto import Events, clocks, write_file
from .plan import Plan
from .recording import Recording

#: Which part of an operator is the launch itself.
_LAUNCH_PART: Final = 0.4
_AUTOGRAD_THREAD: Final = 50_000
_ELEMENT_NBYTES: Final = {"float32": 4, "bfloat16": 2}
_DTYPES: Final = {"float32": "Float", "bfloat16": "BFloat16"}
_OPERATORS: Final = {BACKWARD: "aten::mm", OPTIMIZER: "aten::_fused_adamw_", "forward": "aten::addmm"}


def write_device_kineto(recording: Recording, plan: Plan, folder: Path) -> None:
    """One file a rank in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, (recorded, clock) in enumerate(zip(recording.ranks, clocks(plan.job, plan.noise), strict=True)):
        assert isinstance(recorded, DeviceRecording)
        events = Events(11_000 + rank, clock)
        _host(events, recorded, plan)
        for number, kernel in enumerate(recorded.kernels, start=1):
            _kernel(events, kernel, number, plan)
        write_file(folder / f"rank{rank}.pt.trace.json", events, rank, plan.job, "nccl")


def _host(events: Events, recorded: DeviceRecording, plan: Plan) -> None:
    main, step = events.pid, 0
    for span in recorded.spans:
        if span.name == "DATA_WAIT":
            kind = "_MultiProcessingDataLoaderIter" if plan.job.workers else "_SingleProcessDataLoaderIter"
            name = f"enumerate(DataLoader)#{kind}.__next__"
        elif span.name == "FORWARD":
            name = "DistributedDataParallel.forward"
        elif span.name == "OPTIMIZER_STEP":
            name = "Optimizer.step#AdamW.step"
        elif span.name == "STEP":
            name, step = f"ProfilerStep#{step}", step + 1
        else:
            continue
        events.span("user_annotation", name, main, span.start_ns, span.end_ns)
    for call, start_ns, end_ns in recorded.waits:
        if call != "cudaMemcpyAsync":
            events.span("cuda_runtime", call, main, start_ns, end_ns, {"cbid": 131, "correlation": 0})
        if call == "cudaStreamSynchronize":
            events.span("cpu_op", "aten::item", main, start_ns - 3_000, end_ns + 500)


def _kernel(events: Events, kernel: Kernel, number: int, plan: Plan) -> None:
    launch = kernel.launch
    thread = _AUTOGRAD_THREAD if launch.kind in {BACKWARD, NCCL} else events.pid
    call_ns = launch.launched_ns - (launch.launched_ns - launch.begun_ns) * _LAUNCH_PART
    linked = {"device": 0, "context": 1, "stream": kernel.stream, "correlation": number}
    if launch.kind == COPY:
        # A copy from memory that is not pinned returns when it is through.
        until_ns = kernel.end_ns if "Pageable -> Device" in launch.name else launch.launched_ns
        events.span("cpu_op", "aten::copy_", thread, launch.begun_ns, until_ns + 500)
        events.span("cuda_runtime", "cudaMemcpyAsync", thread, call_ns, until_ns, {"cbid": 41, "correlation": number})
        copied = {**linked, "bytes": launch.nbytes}
        events.span("gpu_memcpy", launch.name, kernel.stream, kernel.start_ns, kernel.end_ns, copied, pid=0)
        return
    if launch.kind == NCCL:
        told = _collective(launch.nbytes, plan)
        events.span("cpu_op", "record_param_comms", thread, launch.begun_ns, launch.launched_ns, told)
        events.span("user_annotation", "nccl:all_reduce", thread, launch.begun_ns + 300, launch.launched_ns)
        linked |= told
    else:
        if launch.kind == BACKWARD:
            node = "autograd::engine::evaluate_function: AddmmBackward0"
            events.span("cpu_op", node, thread, launch.begun_ns, launch.launched_ns + 100)
        events.span("cpu_op", _OPERATORS[launch.kind], thread, launch.begun_ns + 100, launch.launched_ns)
    name = "cudaLaunchKernelExC" if launch.kind == NCCL else "cudaLaunchKernel"
    events.span("cuda_runtime", name, thread, call_ns, launch.launched_ns - 50, {"cbid": 211, "correlation": number})
    events.span("kernel", launch.name, kernel.stream, kernel.start_ns, kernel.end_ns, linked, pid=0)


def _collective(nbytes: int, plan: Plan) -> dict[str, Any]:
    assert plan.job.device is not None
    elements = nbytes // _ELEMENT_NBYTES[plan.job.device.dtype]
    return {
        "Collective name": "allreduce",
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": plan.job.ranks,
        "dtype": _DTYPES[plan.job.device.dtype],
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": str(list(range(plan.job.ranks))),
    }
