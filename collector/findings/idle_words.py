"""Idle time of a device in words: what happened, and what to change, by reason."""

from typing import Final

from ..model.device import Device
from ..model.idle import BLOCKING_COPY, COLLECTIVE, HOST, HOST_WORK, INPUT, LAUNCH, QUEUED, SYNCHRONISATION
from ..model.words import duration, shorten
from .framework_words import Advice, advice_of

#: Findings are of class compute unless they say otherwise.
CLASS_OF: Final = {INPUT: "data", COLLECTIVE: "communication", QUEUED: "unknown"}
_CONFIDENCE: Final = {LAUNCH: 0.7, HOST_WORK: 0.7, INPUT: 0.7, BLOCKING_COPY: 0.7, SYNCHRONISATION: 0.7}
#: What covers less of the time is not named.
MIN_NAMED_RATIO: Final = 0.1
#: Names are shortened to this in sentences.
MAX_NAME: Final = 60

#: What follows "The device is idle for 3.0 ms of each 40.0 ms step"; `{}` is what the host has open.
_SENTENCES: Final = {
    HOST_WORK: "while the host computes instead of launching{}.",
    INPUT: "while the host prepares the input{}.",
    BLOCKING_COPY: "because the host is blocked in copies{} and launches nothing meanwhile.",
    SYNCHRONISATION: "because the host waits for the device{} and launches nothing meanwhile.",
    COLLECTIVE: "while the host waits for a collective{}.",
    HOST: "while the trace does not show what the host does{}.",
}
_REMEDIES: Final = {
    HOST_WORK: "Move this work off the training thread (loader workers, or a thread one step ahead) or onto the device. If it is "
    "a first call (compilation, loading of kernels, tuning), warm up before you profile.",
    COLLECTIVE: "Let collectives of the host (Gloo) run asynchronously, or use NCCL on a stream beside the kernels.",
    QUEUED: "Record once more with all kernels (CUDA graphs: nsys profile --cuda-graph-trace=node) and see on which event the "
    "stream waits; do not judge this part by its idle time.",
}
#: Those that each framework calls otherwise.
_ADVICE: Final = {
    LAUNCH: Advice.FEWER_LAUNCHES,
    INPUT: Advice.INPUT_AHEAD,
    BLOCKING_COPY: Advice.COPY_WITHOUT_BLOCKING,
    SYNCHRONISATION: Advice.READ_LATER,
    HOST: Advice.SHOW_HOST,
}
_ALLOCATOR: Final = (
    "The allocator asks the driver for memory in the loop: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, no "
    "torch.cuda.empty_cache() between steps, inputs of few different shapes."
)
_BUFFERS: Final = (
    "DistributedDataParallel(broadcast_buffers=False) if ranks need not share buffers, gradient_as_bucket_view=True, a foreach "
    "or fused optimizer: the host spends this time on lists of tensors."
)
_ALLOCATING: Final = ("Malloc", "Free", "HostAlloc", "MemAlloc")


def cause_of(reason: str) -> str:
    """The slug of idle time of a reason."""
    return "device-idle" if reason == HOST else f"device-idle-{reason}"


def confidence_of(reason: str) -> float:
    """How sure a reason is."""
    return _CONFIDENCE.get(reason, 0.5)


def during(device: Device, reason: str) -> str:
    """What the host had open meanwhile: ` (cudaMemcpyAsync under aten::to in ## sparse_data_dist ##)`; "" if nothing is known."""
    cause = device.causes.get(reason)
    if cause is None:
        return ""
    idle_ns = float(device.idle_ns[reason].sum())
    words = []
    if cause.calls and cause.calls[0][1] >= MIN_NAMED_RATIO * idle_ns:
        words.append(shorten(cause.calls[0][0], MAX_NAME))
    if cause.operators and cause.operators[0][1] >= MIN_NAMED_RATIO * idle_ns:
        name = shorten(cause.operators[0][0].removeprefix("autograd::engine::evaluate_function: "), MAX_NAME)
        words.append(f"under {name}" if words else name)
    if cause.annotation:
        words.append(f"in {shorten(cause.annotation, MAX_NAME)}")
    return f" ({' '.join(words)})" if words else ""


def idle_sentence(device: Device, reason: str, of_what: str) -> str:
    """How long, and what the host does meanwhile."""
    took, where = duration(device.mean_idle_ns(reason)), during(device, reason)
    if reason == LAUNCH:
        kernels = device.kernels
        return (
            f"The device is idle for {took} {of_what} because the host launches too slowly: {kernels.count / device.count:.0f} "
            f"kernels of {duration(kernels.median_ns)} (median), {kernels.small_ratio:.0%} of them below 10 µs; it spends most "
            f"of this time on{where.replace('(', '').replace(')', '') or ' the launches themselves'}."
        )
    if reason == QUEUED:
        inside_ns = device.inside_graphs_ns / device.count
        graphs = f", {duration(inside_ns)} of it in CUDA graphs" if inside_ns >= 1000 else ""  # noqa: PLR2004  1 µs
        return (
            f"The device shows no activity for {took} {of_what} although its next work had been launched{graphs}: kernels are "
            "missing from the recording, or the stream waits for another one. The host cannot shorten it"
            + (f"; meanwhile it is busy or blocked{where}." if where else ".")
        )
    return f"The device is idle for {took} {of_what} {_SENTENCES[reason].format(where)}"


def idle_remedy(device: Device, reason: str, framework: str) -> str:
    """What to change, in the words of a framework."""
    cause = device.causes.get(reason)
    call = cause.calls[0][0] if cause is not None and cause.calls else ""
    operator = cause.operators[0][0] if cause is not None and cause.operators else ""
    if reason == SYNCHRONISATION and any(word in call for word in _ALLOCATING):
        return _ALLOCATOR
    if reason == HOST_WORK and "flatten_dense_tensors" in operator:
        return _BUFFERS
    return _REMEDIES[reason] if reason in _REMEDIES else advice_of(framework, _ADVICE[reason])
