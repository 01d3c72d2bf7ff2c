"""A device that idles, copies, or waits for collectives while no kernel computes."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ...timeline.vocabulary import Category
from ..facts import Facts
from ..model.breakdown import IDLE
from ..model.device import Cause, Device
from ..model.idle import BETWEEN, HOST, LAUNCH, QUEUED, REASONS
from ..model.words import duration, milliseconds, shorten
from ..predict.change import Change
from ..predict.straggling import own_idle
from .base import OF_MODEL, WORTH_RATIO, Finding, accumulation, promise
from .framework_words import Advice, advise
from .idle_words import CLASS_OF, cause_of, confidence_of, idle_remedy, idle_sentence

#: So much a device is idle in healthy runs, between kernels and around the step; as a share of the rest of the step.
IDLE_ORDINARY_RATIO: Final = 0.1
MIN_IDLE_ORDINARY_RATIO: Final = 0.02
_ORDINARY: Final = (LAUNCH, HOST)
#: Idle time of one reason below this share of the step is not worth a word.
MIN_IDLE_RATIO: Final = 0.02
#: Copies below this share of the step are not worth a word.
MIN_COPIES_RATIO: Final = 0.03


class IdleDevice:
    """The device has nothing to run, by what the host does meanwhile."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """A finding for each reason of idle time that matters."""
        device = facts.device
        if device is None or facts.replay is None:
            return []
        step_ns = facts.mean_step_ns
        shown = [
            reason
            for reason in REASONS
            if reason != BETWEEN and device.mean_idle_ns(reason) >= MIN_IDLE_RATIO * step_ns
        ]
        findings = [find_idle(facts, device, reason) for reason in shown]
        found = [one for one in findings if one.predicted_gain > 0 or one.cause == cause_of(QUEUED)]
        gaining = [reason for reason, one in zip(shown, findings, strict=True) if one.predicted_gain > 0]
        if len(gaining) > 1 and max(one.predicted_gain for one in found) <= WORTH_RATIO:
            found += find_idle_together(facts, device, gaining)
        return found


def find_idle_together(facts: Facts, device: Device, reasons: Sequence[str]) -> list[Finding]:
    """Idle time of several reasons, none of which is worth a change alone, if together they are."""
    removed = np.sum([_beyond_ordinary(facts, device, reason) for reason in reasons], axis=0)
    outcome = facts.outcome(facts.without(IDLE, removed))
    if outcome.gain <= WORTH_RATIO:
        return []
    step_ns = facts.mean_step_ns
    largest = max(reasons, key=device.mean_idle_ns)
    told = ", ".join(f"{reason.replace('-', ' ')} {duration(device.mean_idle_ns(reason))}" for reason in reasons)
    return [
        Finding(
            class_="compute",
            cause=cause_of(HOST),
            ranks=facts.ranks,
            predicted_gain=outcome.gain,
            gain_interval=(outcome.interval[0] / 2, outcome.interval[1]),
            outcome=outcome,
            confidence=confidence_of(HOST),
            evidence={
                **_evidence(device, largest),
                "by_reason_ns": {reason: round(device.mean_idle_ns(reason)) for reason in reasons},
            },
            remedy=idle_remedy(device, largest, facts.trace.meta.framework),
            sentence=(
                f"The device is idle for {duration(sum(device.mean_idle_ns(reason) for reason in reasons))} of each "
                f"{milliseconds(step_ns)} step for several reasons, none of which is large alone: {told}."
            ),
        )
    ]


def find_idle(facts: Facts, device: Device, reason: str) -> Finding:
    """What the idle time of one reason costs, and what to do about it."""
    step_ns, removed = facts.mean_step_ns, _beyond_ordinary(facts, device, reason)
    outcome = facts.outcome(facts.without(IDLE, removed))
    low, high = outcome.interval
    # How much of it goes depends on how far ahead the host can run.
    interval = (low / 2, high) if outcome.gain else (0.0, 0.0)
    return Finding(
        class_=CLASS_OF.get(reason, "compute"),
        cause=cause_of(reason),
        ranks=facts.ranks,
        predicted_gain=outcome.gain,
        gain_interval=interval,
        outcome=outcome,
        confidence=confidence_of(reason),
        evidence=_evidence(device, reason),
        remedy=idle_remedy(device, reason, facts.trace.meta.framework),
        sentence=idle_sentence(device, reason, f"of each {milliseconds(step_ns)} step"),
    )


def _beyond_ordinary(facts: Facts, device: Device, reason: str) -> np.ndarray:
    """Idle time of a reason that could go: float[rank, step]."""
    step_ns, idle_ns = facts.mean_step_ns, device.idle_ns[reason].astype(float)
    if reason == QUEUED:
        return np.zeros_like(idle_ns)  # nothing that the host does changes what it has launched already
    # What some ranks have beyond their peers is those ranks' own (straggler.py).
    excess = own_idle(idle_ns, step_ns)
    if excess is not None:
        idle_ns = np.maximum(idle_ns - excess.excess_ns, 0.0)
    beyond: np.ndarray = np.maximum(idle_ns - _ordinary_ns(facts, device, reason), 0.0)
    return beyond


def _ordinary_ns(facts: Facts, device: Device, reason: str) -> float:
    """What a device idles for a reason in healthy runs, too; less of a run that idles clearly more.

    A run whose kernels follow each other has short gaps: these are launches, and around the step host work.  Together they are
    ordinary once, each by what it has of them.
    """
    if reason not in _ORDINARY:
        return 0.0
    both_ns = sum(float(device.idle_ns[one].mean()) for one in _ORDINARY if one in device.idle_ns)
    rest_ns = max(facts.mean_step_ns - float(facts.part(IDLE).mean()), 1.0)
    ratio = float(np.clip(2 * IDLE_ORDINARY_RATIO - both_ns / rest_ns, MIN_IDLE_ORDINARY_RATIO, IDLE_ORDINARY_RATIO))
    return ratio * rest_ns * float(device.idle_ns[reason].mean()) / max(both_ns, 1.0)


def _evidence(device: Device, reason: str) -> dict[str, Any]:
    cause = device.causes.get(reason, Cause(calls=(), operators=(), annotation=""))
    return {
        "idle_ns": round(float(device.breakdown.parts_ns[IDLE].sum()) / device.count),
        "of_it_ns": round(device.mean_idle_ns(reason)),
        "calls_ns": {shorten(name): round(ns / device.count) for name, ns in cause.calls},
        "operators_ns": {shorten(name): round(ns / device.count) for name, ns in cause.operators},
        "annotation": shorten(cause.annotation),
        "kernels_per_step": round(device.kernels.count / device.count, 1),
        "median_kernel_ns": device.kernels.median_ns,
    }


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
        if outcome.gain < MIN_COPIES_RATIO:
            return []
        evidence: dict[str, Any] = {"mean_ns": round(float(copying_ns.mean()))}
        if facts.device is not None:
            evidence["all_copies_ns"] = round(facts.device.copies_ns.get("HtoD", 0) / facts.device.count)
        return [
            promise(
                outcome,
                class_="data",
                cause="slow-copies-to-device",
                ranks=facts.ranks,
                confidence=0.6,
                evidence=evidence,
                remedy=advise(facts, Advice.COPIES_AHEAD),
                sentence=(
                    f"In each {milliseconds(facts.mean_step_ns)} step {milliseconds(float(common_ns.mean()))} pass with copies "
                    f"to the device, which no {'kernel' if facts.breakdown.on_device else 'computation'} hides."
                ),
            )
        ]


class ExposedOnDevice:
    """Kernels of collectives run while no kernel computes."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """One finding where hiding them, or the part that can be hidden, is worth it."""
        device = facts.device
        if device is None or facts.replay is None or not device.exposed:
            return []
        exposed_ns = facts.part(str(Category.COLLECTIVE)).astype(float)
        if exposed_ns.mean() < WORTH_RATIO * facts.mean_step_ns:
            return []
        total_ns = max(sum(row.total_ns for row in device.exposed), 1)
        hideable_ns = np.minimum(exposed_ns, device.overlappable_ns)
        left = max(1.0 - float(hideable_ns.sum()) / total_ns, 0.0)
        outcome = facts.outcome(Change(latency=left, transfer=left))
        return [
            Finding(
                class_="communication",
                cause="exposed-nccl",
                ranks=facts.ranks,
                predicted_gain=outcome.gain,
                # More than can be hidden goes only with the bytes, or with what makes them slow.
                gain_interval=(0.0, max(outcome.interval[1], facts.outcome(Change(latency=0.0, transfer=0.0)).gain)),
                outcome=outcome,
                order_gain=OF_MODEL * outcome.gain,
                confidence=0.6,
                evidence=_exposed_evidence(facts, device, hideable_ns),
                remedy=_overlap(facts, device, hideable_ns),
                sentence=exposed_sentence(device, f"of each {milliseconds(facts.mean_step_ns)} step"),
            )
        ]


def _exposed_evidence(facts: Facts, device: Device, hideable_ns: np.ndarray) -> dict[str, Any]:
    return {
        "exposed_ns": round(float(facts.part(str(Category.COLLECTIVE)).mean())),
        "hideable_ns": round(float(hideable_ns.mean())),
        "waiting_estimate_ns": round(sum(row.waiting_ns for row in device.exposed) / device.count),
        "by_kind": [
            {
                "kind": row.kind,
                "bytes": row.nbytes,
                "caller": row.caller,
                "count": row.count,
                "exposed_ns": round(row.exposed_ns / device.count),
            }
            for row in device.exposed[:5]
        ],
    }


def exposed_sentence(device: Device, of_what: str) -> str:
    """How much collectives hold up the device, which ones, and how much of it looks like waiting."""
    exposed_ns = float(device.breakdown.parts_ns[str(Category.COLLECTIVE)].sum()) / device.count
    largest = device.exposed[0]
    whose = {"gradient": " of gradients", "parameters": " of parameters"}.get(largest.caller, "")
    sentence = (
        f"Collectives run for {duration(exposed_ns)} {of_what} while no kernel computes, most of it {largest.kind}{whose} "
        f"({duration(largest.exposed_ns / device.count)})."
    )
    waiting_ns = sum(row.waiting_ns for row in device.exposed) / device.count
    if waiting_ns > WORTH_RATIO * exposed_ns and len(device.breakdown.ranks) == 1:
        sentence += (
            f" Compared with the fastest of their size they take {duration(waiting_ns)} longer, which is probably waiting for "
            "ranks whose files are not here."
        )
    return sentence


def _overlap(facts: Facts, device: Device, hideable_ns: np.ndarray) -> str:
    callers = [row.caller for row in device.exposed]
    most = callers[0]
    hint = {
        "gradient": "reduce each bucket while backward goes on (one bucket less than all: bucket_cap_mb=25, no "
        "find_unused_parameters, the last layers' gradients first)",
        "parameters": "gather the next layer's parameters ahead (FSDP: forward_prefetch=True, backward_prefetch=BACKWARD_PRE)",
    }.get(most, "start it as soon as its input is there (async_op=True) and wait where its result is used")
    short = float(facts.part(str(Category.COLLECTIVE)).mean()) - float(hideable_ns.mean())
    rest = (
        f" Kernels to hide {duration(short)} of it behind do not exist: communicate less often ({accumulation(facts)}), fewer "
        "bytes, or over a faster link."
        if short > WORTH_RATIO * facts.mean_step_ns
        else ""
    )
    return f"Overlap it: {hint}.{rest}"
