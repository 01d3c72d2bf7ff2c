"""Time that every rank spends on neither data, nor the model, nor communication."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...timeline.vocabulary import Category, LaneKind
from ..facts import Facts
from ..model.breakdown import IDLE
from ..model.pattern import find_pattern
from ..model.words import milliseconds
from .base import Finding

#: The loss, zero_grad and the loop itself are host code, too; this much, as a share of the rest of the step, is ordinary.
ORDINARY_RATIO: Final = 0.1
#: So much a device is idle in healthy runs, between kernels and around the step; as a share of the rest of the step.
IDLE_ORDINARY_RATIO: Final = 0.1
HALF: Final = 0.5
#: Copies below this share of the step are not worth a word.
LEAST_COPIES_RATIO: Final = 0.03

#: Calls of the host that return only when the device has caught up.
_SYNCHRONISING: Final = r"(?i)(?:stream|device|event)synchronize|_local_scalar_dense"


class HostCode:
    """Code of the training loop outside everything that is recorded."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """One finding if all ranks have it (one rank alone is a straggler)."""
        if facts.replay is None or facts.breakdown.on_device:
            return []
        host_ns = facts.part(str(Category.OTHER)).astype(float)
        common_ns = np.broadcast_to(host_ns.min(axis=0), host_ns.shape)
        step_ns = facts.mean_step_ns
        outcome = facts.outcome(facts.without(str(Category.OTHER), _beyond_ordinary(common_ns, step_ns)))
        if outcome.gain <= 0:
            return []
        pattern = find_pattern(_beyond_ordinary(host_ns, step_ns).max(axis=0), facts.steps.numbers)
        return [
            Finding(
                class_="compute",
                cause="host-code",
                ranks=facts.ranks,
                predicted_gain=outcome.gain,
                gain_interval=outcome.interval,
                outcome=outcome,
                confidence=0.6,
                evidence={"mean_ns": round(float(host_ns.mean())), "pattern": pattern.kind, **pattern.evidence},
                remedy="Look at what the loop does besides the model (logging, metrics, .item(), evaluation): do it less often.",
                sentence=(
                    f"Every rank spends {milliseconds(float(host_ns.mean()))} of each {milliseconds(step_ns)} step in code "
                    "that is neither data loading, nor forward, backward or optimizer."
                ),
            )
        ]


def _beyond_ordinary(host_ns: np.ndarray, step_ns: float) -> np.ndarray:
    """What is more than a loop needs for itself: float[rank, step]."""
    beyond: np.ndarray = np.maximum(host_ns - ORDINARY_RATIO * max(step_ns - float(host_ns.mean()), 0.0), 0.0)
    return beyond


class IdleDevice:
    """The device waits for the host to hand out work."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """One finding if all ranks have it."""
        if not facts.breakdown.on_device or facts.replay is None:
            return []
        step_ns = facts.mean_step_ns
        idle_ns = facts.part(IDLE).astype(float)
        outcome = facts.outcome(facts.without(IDLE, idle_ns - IDLE_ORDINARY_RATIO * np.maximum(step_ns - idle_ns, 0.0)))
        if outcome.gain <= 0:
            return []
        spans = facts.in_steps(facts.trace.spans)
        kernels = spans[spans["lane_kind"] == str(LaneKind.COMPUTE)]
        per_step = len(kernels) / (facts.steps.count * len(facts.ranks))
        median_ns = float(kernels["dur_ns"].median()) if len(kernels) else 0.0
        host = spans[spans["lane_kind"] == str(LaneKind.HOST)]
        waits = host[host["name"].astype("str").str.contains(_SYNCHRONISING)]
        blocked_ns = float(waits["dur_ns"].sum()) / (facts.steps.count * len(facts.ranks))
        blocked = blocked_ns > HALF * float(idle_ns.mean())
        return [
            Finding(
                class_="compute",
                cause="device-idle",
                ranks=facts.ranks,
                predicted_gain=outcome.gain,
                gain_interval=outcome.interval,
                outcome=outcome,
                confidence=0.6,
                evidence={
                    "idle_ns": round(float(idle_ns.mean())),
                    "kernels_per_step": round(per_step, 1),
                    "median_kernel_ns": round(median_ns),
                    "host_waits_for_device_ns": round(blocked_ns),
                },
                remedy=(
                    "Keep the host from waiting for the device (.item(), .cpu(), print of a tensor, non-pinned copies): it hands "
                    "out nothing meanwhile."
                    if blocked
                    else "Have the host do less for each kernel: torch.compile or CUDA graphs, larger batches, fused optimizers."
                ),
                sentence=(
                    f"The device is idle for {milliseconds(float(idle_ns.mean()))} of each {milliseconds(step_ns)} step, while "
                    f"the host prepares {per_step:.0f} kernels of {milliseconds(median_ns)} (median)."
                ),
            )
        ]


class SlowCopies:
    """Batches are copied to the device while nothing else goes on."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """One finding if all ranks have it (one rank alone is a straggler)."""
        copying_ns = facts.part(str(Category.H2D))
        if facts.replay is None or not copying_ns.any():
            return []
        common_ns = np.broadcast_to(copying_ns.min(axis=0), copying_ns.shape)
        # With pinned memory and a stream of their own copies run behind computation: nearly all of it goes.
        outcome = facts.outcome(facts.without(str(Category.H2D), common_ns))
        if outcome.gain < LEAST_COPIES_RATIO:
            return []
        return [
            Finding(
                class_="data",
                cause="slow-copies-to-device",
                ranks=facts.ranks,
                predicted_gain=outcome.gain,
                gain_interval=outcome.interval,
                outcome=outcome,
                confidence=0.6,
                evidence={"mean_ns": round(float(copying_ns.mean()))},
                remedy=(
                    "DataLoader(pin_memory=True) and batch.to(device, non_blocking=True), one batch ahead, so that copies run "
                    "behind computation; send smaller types (uint8 images) and convert on the device."
                ),
                sentence=(
                    f"In each {milliseconds(facts.mean_step_ns)} step {milliseconds(float(common_ns.mean()))} pass with copies "
                    "to the device, which nothing hides."
                ),
            )
        ]


class Checkpoints:
    """The training stands still while checkpoints are written."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """One finding if they cost something."""
        writing_ns = facts.part(str(Category.CHECKPOINT))
        if facts.replay is None or not writing_ns.any():
            return []
        outcome = facts.outcome(facts.without(str(Category.CHECKPOINT), writing_ns))
        ranks = tuple(rank for rank, row in zip(facts.ranks, writing_ns, strict=True) if row.any())
        steps = int((writing_ns.max(axis=0) > 0).sum())
        return [
            Finding(
                class_="compute",
                cause="checkpoint-stall",
                ranks=ranks,
                predicted_gain=outcome.gain,
                gain_interval=outcome.interval,
                outcome=outcome,
                confidence=0.9,
                evidence={"steps": steps, "mean_ns": round(float(writing_ns[writing_ns > 0].mean()))},
                remedy="Save less often, or in the background (torch.distributed.checkpoint.async_save).",
                sentence=(
                    f"{steps} of {facts.steps.count} steps wait for a checkpoint of "
                    f"{milliseconds(float(writing_ns[writing_ns > 0].mean()))}."
                ),
            )
        ]
