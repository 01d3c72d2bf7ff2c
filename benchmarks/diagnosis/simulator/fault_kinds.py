"""The kinds of faults."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from .faults import ALWAYS, BURSTS, EVERY, GROWING, IN_TURN, WINDOW, Fault, Kind, PlanChange
from .jobs import MAX_EVENTS, MIN_BYTES_PER_NS, MIN_STEPS, Call, Job, Layer
from .plan import Plan

_ANY: Final = (ALWAYS, ALWAYS, EVERY, WINDOW, GROWING, IN_TURN, BURSTS)
_LASTING: Final = (ALWAYS, ALWAYS, WINDOW, GROWING)
#: Causes that say when, where a fault comes and goes on all ranks.
_IN_TIME: Final = ("periodic-stalls", "outlier-steps", "slowing-down", "slow-stretch")
#: What an ordinary update takes: seven passes over the bytes (Adam's) at ten gigabytes a second.
_UPDATE_NS_A_BYTE: Final = 0.7


def _more_of(item: str) -> PlanChange:
    def spoil(plan: Plan, fault: Fault) -> None:
        amount = fault.amount_ns(plan.job) * fault.weights(plan.job, plan.noise)
        plan.add(item, amount, is_blocked=fault.is_blocked)

    return spoil


def _slower_fetch(item: str) -> PlanChange:
    def spoil(plan: Plan, fault: Fault) -> None:
        job = plan.job
        amount = fault.amount_ns(job)
        if job.workers:  # they work side by side: batches must come too late
            amount = job.workers * (job.work_ns + amount) - job.dataset_ns - job.collate_ns
        plan.add(item, amount * fault.weights(job, plan.noise), is_blocked=fault.is_blocked)

    return spoil


def _starve(plan: Plan, fault: Fault) -> None:
    amount = fault.amount_ns(plan.job) / plan.job.work_ns
    plan.starved = plan.starved + amount * fault.weights(plan.job, plan.noise)


def _uneven(plan: Plan, fault: Fault) -> None:
    """Larger batches on some ranks; on all ranks, sizes by chance."""
    shape = plan.shape
    if fault.is_everywhere:
        factor = plan.noise.factors("batches", shape, min(fault.share, 0.6))
    else:
        factor = 1 + fault.amount_ns(plan.job) / plan.job.work_ns * fault.weights(plan.job, plan.noise)
    for item in ("forward", "backward", "dataset", "collate"):
        plan.busy[item] = plan.busy[item] * factor
    plan.elements = np.rint(plan.elements * factor).astype(np.int64)


def _small_update(job: Job, fault: Fault) -> Job:
    """Few bytes to update: an update that is always slow everywhere shows only beside what its bytes need."""
    if not fault.is_everywhere:
        return job
    most = fault.amount_ns(job) * 0.2 / _UPDATE_NS_A_BYTE
    less = min(1.0, most / job.nbytes)
    layers = tuple(layer._replace(nbytes=max(4, int(layer.nbytes * less) // 4 * 4)) for layer in job.layers)
    return replace(job, layers=layers)


# Loaders.


def _busy_workers(job: Job, fault: Fault) -> Job:
    """Batches that take long, and workers enough for them."""
    few = max(1, min(4, job.workers // 2))
    fetch_ns = few * (job.work_ns + fault.amount_ns(job))
    enough = int(np.ceil(fetch_ns / job.work_ns * 1.4)) + 1
    return replace(job, workers=enough, dataset_ns=int(fetch_ns * 0.8), collate_ns=int(fetch_ns * 0.2))


def _few_workers(job: Job, fault: Fault) -> Job:
    few = (job.dataset_ns + job.collate_ns) / (job.work_ns + fault.amount_ns(job))
    return replace(job, workers=max(1, round(few)))


def _short_epochs(job: Job, fault: Fault) -> Job:
    workers = job.workers or 2
    fetch_ns = min(job.dataset_ns + job.collate_ns, job.work_ns * 0.1)
    epoch_steps = max(4, min(12, job.steps // 4))
    spawn_ns = int(fault.amount_ns(job) * epoch_steps / workers)
    return replace(
        job,
        workers=workers,
        persistent=True,
        epoch_steps=epoch_steps,
        spawn_ns=spawn_ns,
        dataset_ns=int(fetch_ns * 0.8),
        collate_ns=int(fetch_ns * 0.2),
    )


# Devices.


def _with_device(job: Job, **changes: Any) -> Job:
    assert job.device is not None
    return replace(job, device=job.device._replace(**changes))


def _kernels(job: Job) -> int:
    return 3 * len(job.layers) + 4


def _launch_bound(job: Job, fault: Fault) -> Job:
    return _with_device(job, launch_ns=int((job.work_ns + fault.amount_ns(job)) / _kernels(job)))


def _slow_launches(job: Job, fault: Fault) -> Job:
    """A host that is quick enough, unless it has to wait for its device time and again."""
    launch_ns = max(6_000, min(fault.amount_ns(job) / len(job.layers) - 20_000, 0.6 * job.work_ns / _kernels(job)))
    return _with_device(job, launch_ns=int(launch_ns))


def _copy_of(job: Job, fault: Fault, *, is_pinned: bool) -> Job:
    assert job.device is not None
    nbytes = int(fault.amount_ns(job) * job.device.copy_bytes_per_ns)
    return _with_device(job, copy_nbytes=max(nbytes, job.device.copy_nbytes), is_pinned=is_pinned)


def _slow_device(plan: Plan, fault: Fault) -> None:
    factor = 1 + fault.amount_ns(plan.job) / plan.job.work_ns * fault.weights(plan.job, plan.noise)
    for item in ("forward", "backward", "optimizer"):
        plan.busy[item] = plan.busy[item] * factor


# Communication.


def _many_layers(job: Job, fault: Fault) -> Job:
    tensors = 80 if job.ranks <= 4 else 48 if job.ranks <= 8 else 30
    pieces = -(-tensors // len(job.layers))
    layers = tuple(
        Layer(
            f"{layer.name[:-7]}.{piece}.weight", max(4, layer.nbytes // pieces), layer.share / pieces, layer.is_partial
        )
        for layer in job.layers
        for piece in range(pieces)
    )
    steps = int(np.clip(MAX_EVENTS / (job.ranks * (25 + 13 * len(layers))), MIN_STEPS, job.steps))
    # More than this would be felt in every fused batch, too.
    latency_ns = int(min((0.8 * job.backward_ns + fault.amount_ns(job)) / len(layers), 0.012 * job.work_ns))
    return replace(job, layers=layers, steps=steps, epoch_steps=steps, latency_ns=latency_ns)


def _slow_wire(job: Job, fault: Fault) -> Job:
    wire_ns = 0.8 * job.backward_ns + fault.amount_ns(job)
    return replace(job, bytes_per_ns=min(job.bytes_per_ns, job.nbytes * job.ring_factor / wire_ns))


def _nbytes_for(job: Job, wire_ns: float) -> int:
    return max(4, int(wire_ns * job.bytes_per_ns / job.ring_factor) // 4 * 4)


def _huge_layer(job: Job, fault: Fault) -> Job:
    place = len(job.layers) // 2
    hidden_ns = job.backward_ns * sum(layer.share for layer in job.layers[:place])
    layer = Layer("head.huge.weight", _nbytes_for(job, hidden_ns + fault.amount_ns(job)), 0.0)
    return replace(job, layers=(*job.layers[:place], layer, *job.layers[place:]))


def _embedding_at_output(job: Job, fault: Fault) -> Job:
    wire_ns = min(fault.amount_ns(job), 0.8 * job.backward_ns)
    return replace(job, layers=(*job.layers, Layer("embedding.weight", _nbytes_for(job, wire_ns), 0.0)))


def _embedding_at_input(job: Job, fault: Fault) -> Job:
    del fault
    others = tuple(layer for layer in job.layers if layer.name != "embedding.weight")
    late = tuple(layer for layer in job.layers if layer.name == "embedding.weight")
    return replace(job, layers=(*late, *others))


def _much_to_overlap(job: Job, fault: Fault) -> Job:
    wire_ns = min(fault.amount_ns(job), 0.8 * job.backward_ns)
    speed = job.nbytes * job.ring_factor / wire_ns
    # Rather larger layers than a network that is slow by itself.
    more = max(1.0, MIN_BYTES_PER_NS / speed)
    layers = [layer._replace(nbytes=int(layer.nbytes * more) // 4 * 4) for layer in job.layers]
    layers[0] = layers[0]._replace(nbytes=max(4, job.layers[0].nbytes // 50))
    return replace(job, layers=tuple(layers), bytes_per_ns=speed * more)


def _call_ns(job: Job) -> float:
    return 2 * job.message_ns + job.latency_ns + 60e3


def _costly_calls(job: Job, fault: Fault) -> Job:
    """Calls that cost enough for thirty of them to make the fault."""
    lacking = fault.amount_ns(job) / 30 - _call_ns(job)
    return replace(job, latency_ns=int(job.latency_ns + max(0.0, lacking)))


def _metrics(job: Job, fault: Fault) -> Job:
    count = int(np.clip(round(fault.amount_ns(job) / _call_ns(job)), 1, 30))
    return replace(job, calls=(*job.calls, Call(tuple(f"metric.{number}" for number in range(count)), "allreduce", 4)))


def _object(job: Job, fault: Fault) -> Job:
    wire_ns = max(fault.amount_ns(job) - 2 * _call_ns(job), 1.0)
    return replace(job, calls=(*job.calls, Call(("object.sz", "object.t"), "broadcast", _nbytes_for(job, wire_ns))))


def _barriers(job: Job, fault: Fault) -> Job:
    count = int(np.clip(round(fault.amount_ns(job) / _call_ns(job)), 1, 30))
    return replace(job, calls=(*job.calls, Call(tuple(f"barrier.{number}" for number in range(count)), "barrier", 0)))


_straggling = partial(Kind, everywhere="compute", somewhere="straggler")
_communication = partial(Kind, everywhere="communication", needs_peers=True, names_ranks=False)

KINDS: Final[Mapping[str, Kind]] = {
    "slow-dataset": Kind(
        everywhere="data", somewhere="data", causes=("slow-loader",), spoil_plan=_slower_fetch("dataset"),
        patterns=_LASTING, may_block=True,
    ),
    "slow-collate": Kind(
        everywhere="data", somewhere="data", causes=("slow-loader",), spoil_plan=_slower_fetch("collate"),
        patterns=_LASTING, may_block=True,
    ),
    "few-workers": Kind(
        everywhere="data", causes=("slow-loader", "few-workers"), prepare=_busy_workers, spoil_job=_few_workers,
        max_share=0.6,
    ),
    "worker-start-up": Kind(
        everywhere="data", causes=("worker-start-up",), prepare=_short_epochs,
        spoil_job=lambda job, _: replace(job, persistent=False), max_share=0.6,
    ),
    "slow-forward": _straggling(
        causes=("slow-forward",), causes_everywhere=("blocked-forward", *_IN_TIME),
        spoil_plan=_more_of("forward"), patterns=_ANY, may_block=True, needs_trace_of_time=True,
    ),
    "slow-backward": _straggling(
        causes=("slow-backward",), causes_everywhere=("blocked-backward", *_IN_TIME),
        spoil_plan=_more_of("backward"), patterns=_ANY, may_block=True, needs_trace_of_time=True,
    ),
    "slow-optimizer": _straggling(
        causes=("slow-optimizer", "slow-optimizer-step"), causes_everywhere=("blocked-optimizer", *_IN_TIME),
        prepare=_small_update, spoil_plan=_more_of("optimizer"), patterns=_ANY, may_block=True,
    ),
    "slow-loop": _straggling(
        causes=("slow-host-code", "host-code"), causes_everywhere=(*_IN_TIME, "device-idle"),
        spoil_plan=_more_of("loop"), patterns=_ANY, may_block=True,
    ),
    "checkpoints": _straggling(
        causes=("checkpoint-on-one-rank", "checkpoint-stall", "slow-checkpoint", "checkpoint"),
        causes_everywhere=("periodic-stalls",), spoil_plan=_more_of("checkpoint"), patterns=(EVERY,), may_block=True,
    ),
    "validation": Kind(
        everywhere="", somewhere="straggler", causes=("validation-on-one-rank", "slow-forward", "slow-host-code", "validation"),
        spoil_plan=_more_of("validation"), patterns=(EVERY,),
    ),
    "garbage": _straggling(
        causes=("garbage-collection", "garbage-collection-on-one-rank"), causes_everywhere=("periodic-stalls",),
        spoil_plan=_more_of("garbage"), patterns=(EVERY, BURSTS, ALWAYS),
    ),
    "starved": _straggling(
        causes=("starved-of-cores", "starved-rank", "slow-forward", "slow-backward"), causes_everywhere=_IN_TIME,
        spoil_plan=_starve, patterns=(ALWAYS, WINDOW, BURSTS, BURSTS), max_share=0.6,
    ),
    "uneven-batches": Kind(
        everywhere="straggler", somewhere="straggler", causes=("uneven-batches",), spoil_plan=_uneven, needs_peers=True,
        patterns=(ALWAYS, ALWAYS, WINDOW, IN_TURN),
    ),
    "no-fusion": _communication(
        causes=("many-small-collectives",), prepare=_many_layers,
        spoil_job=lambda job, _: replace(job, threshold_nbytes=0), max_share=0.6,
    ),
    "slow-link": _communication(
        causes=("slow-link", "bandwidth-bound", "exposed-communication", "exposed-nccl", "wrong-backend"), spoil_job=_slow_wire,
    ),
    "high-latency": _communication(
        causes=("slow-link", "high-latency", "many-small-collectives", "exposed-communication", "exposed-nccl", "wrong-backend"),
        spoil_job=lambda job, fault: replace(job, latency_ns=job.latency_ns + int(fault.amount_ns(job))),
    ),
    "slow-negotiation": _communication(
        causes=("slow-negotiation",),
        spoil_job=lambda job, fault: replace(job, message_ns=job.message_ns + int(fault.amount_ns(job) / 2)),
    ),
    "long-cycle": _communication(
        causes=("slow-negotiation", "long-cycle"),
        spoil_job=lambda job, fault: replace(job, cycle_ns=job.cycle_ns + int(2 * fault.amount_ns(job))),
    ),
    "huge-tensor": _communication(
        causes=("oversize-gradient", "late-gradients", "bandwidth-bound"), spoil_job=_huge_layer,
    ),
    "late-gradients": _communication(
        causes=("late-gradients", "oversize-gradient"), prepare=_embedding_at_output,
        spoil_job=_embedding_at_input, max_share=0.4,
    ),
    "no-overlap": _communication(
        causes=("exposed-communication", "late-gradients", "no-overlap", "bandwidth-bound"),
        prepare=_much_to_overlap, spoil_job=lambda job, _: replace(job, overlaps=False), max_share=0.4,
    ),
    "metrics": _communication(
        causes=("blocking-calls", "many-small-collectives"),
        prepare=_costly_calls, spoil_job=_metrics, max_share=0.5,
    ),
    "object-broadcast": _communication(
        causes=("object-collectives",), spoil_job=_object,
    ),
    "barriers": _communication(
        causes=("barriers", "many-small-collectives"),
        prepare=_costly_calls, spoil_job=_barriers, max_share=0.5,
    ),
    "slow-gpu": Kind(
        everywhere="", somewhere="straggler", causes=("slow-gpu", "slow-device", "slow-forward", "slow-backward", "late-rank"),
        spoil_plan=_slow_device, patterns=(ALWAYS, ALWAYS, WINDOW, IN_TURN),
    ),
    "launch-bound": Kind(
        everywhere="compute", causes=("device-idle", "device-idle-launch", "device-idle-host-work"),
        spoil_job=_launch_bound, max_share=0.6,
    ),
    "synchronisation": Kind(
        everywhere="compute",
        causes=("device-idle", "device-idle-synchronisation", "device-idle-blocking-copy", "device-idle-launch"),
        prepare=_slow_launches, spoil_job=lambda job, _: _with_device(job, syncs=len(job.layers)), max_share=0.4,
    ),
    "exposed-copies": Kind(
        everywhere="data", causes=("slow-copies-to-device", "exposed-copies"),
        spoil_job=lambda job, fault: _copy_of(job, fault, is_pinned=True),
    ),
    "blocking-copies": Kind(
        everywhere="data", causes=("slow-copies-to-device", "exposed-copies", "blocking-copy"),
        spoil_job=lambda job, fault: _copy_of(job, fault, is_pinned=False),
    ),
}  # fmt: skip

_ON_DEVICES: Final = {"slow-gpu", "launch-bound", "synchronisation", "exposed-copies", "blocking-copies"}
_LOADERS: Final = {"slow-dataset", "slow-collate", "few-workers"}
_PARTS: Final = {"slow-forward", "slow-backward", "slow-optimizer", "slow-loop"}
_NETWORK: Final = {"slow-link", "high-latency", "huge-tensor"}
#: What can be seen in a format at all.
SHOWN: Final[Mapping[str, frozenset[str]]] = {
    "tlkit": frozenset(set(KINDS) - _ON_DEVICES - {"long-cycle"}),
    "horovod": frozenset({*_PARTS, *_NETWORK, "slow-dataset", "checkpoints", "starved", "no-fusion", "long-cycle", "metrics",
                          "late-gradients", "slow-negotiation"}),
    "kineto": frozenset({*_LOADERS, *_PARTS, *_NETWORK, "starved", "metrics", "late-gradients"}),
    "gpu": frozenset({*_LOADERS, *_ON_DEVICES, *_NETWORK, "slow-forward", "slow-backward", "slow-loop"}),
}  # fmt: skip
