"""The verdict on a device: of a recording without steps, of idle time that nobody can explain, healthy steps."""

from collections.abc import Sequence
from typing import Final

from ...timeline.vocabulary import Category
from ..facts import Facts
from ..model.breakdown import IDLE
from ..model.device import Device
from ..model.idle import BETWEEN, HOST, QUEUED, REASONS
from ..model.words import duration, milliseconds, shorten
from .base import WORTH_RATIO, Finding
from .device import exposed_sentence, find_idle
from .framework_words import Advice, advice_of
from .idle_words import CLASS_OF, cause_of, during, idle_remedy, idle_sentence
from .plain import plain

#: Idle time that nobody can explain makes a trace unfit to judge if it has more of the step than this.
UNEXPLAINED_RATIO: Final = 0.3
#: With so much of a step queued, activities of the device are missing, and where the host shows nothing its calls are, too.
MIN_QUEUED_RATIO: Final = 0.1


def device_verdict(facts: Facts, worthy: Sequence[Finding]) -> Finding | None:
    """The verdict where a device shows and the rules cannot give one: no steps, or idle time that nobody can explain."""
    device = facts.device
    if device is None:
        return None
    if device.has_steps:
        return _unexplained(facts, device, worthy)
    parts = device.breakdown.parts_ns
    shares = {
        reason: device.share(float(device.idle_ns[reason].sum()))
        for reason in REASONS
        if reason not in {BETWEEN, QUEUED}
    }
    for part in (Category.H2D, Category.COLLECTIVE, Category.DATA):
        shares[str(part)] = device.share(float(parts[str(part)].sum()))
    largest = max(shares, key=lambda name: shares[name])
    if shares[largest] > WORTH_RATIO:
        return _part_of_recording(device, largest, shares[largest], facts.trace.meta.framework)
    return _busy(device)


def _unexplained(facts: Facts, device: Device, worthy: Sequence[Finding]) -> Finding | None:
    """Steps most of which the device was idle with work in its queue."""
    queued = device.share(float(device.idle_ns[QUEUED].sum()))
    unknown = queued + device.share(float(device.idle_ns[HOST].sum()))
    best = worthy[0].predicted_gain if worthy else 0.0
    if queued < MIN_QUEUED_RATIO or unknown <= max(UNEXPLAINED_RATIO, best) or facts.replay is None:
        return None
    return find_idle(facts, device, QUEUED)


def _recorded(device: Device) -> str:
    return f"of {milliseconds(device.mean_ns)} recorded"


def _part_of_recording(device: Device, name: str, share: float, framework: str) -> Finding:
    """The largest cost of a recording without steps."""
    of_what = _recorded(device)
    kernels_ns = device.kernels.total_ns / device.count
    if name == str(Category.H2D):
        class_, cause = "data", "slow-copies-to-device"
        copied = duration(float(device.breakdown.parts_ns[name].sum()) / device.count)
        sentence = (
            f"Copies to the device take {copied} {of_what} with no kernel beside them; all kernels together take "
            f"{duration(kernels_ns)}."
        )
        remedy = (
            "If these are weights that the host keeps (CPU offload), keep more of them on the device, or copy the next layer's "
            "on a stream of its own while this one computes; batches: pinned memory, non_blocking=True, one ahead."
        )
    elif name == str(Category.COLLECTIVE):
        class_, cause = "communication", "exposed-nccl"
        sentence = exposed_sentence(device, of_what)
        remedy = "Overlap collectives with computation, or communicate fewer bytes or over a faster link."
    elif name == str(Category.DATA):
        class_, cause = "data", "slow-loader"
        waited = duration(float(device.breakdown.parts_ns[name].sum()) / device.count)
        sentence = f"The device waits for the data loader for {waited} {of_what}."
        remedy = advice_of(framework, Advice.MORE_WORKERS)
    else:
        class_, cause = CLASS_OF.get(name, "compute"), cause_of(name)
        sentence, remedy = idle_sentence(device, name, of_what), idle_remedy(device, name, framework)
    return plain(
        class_,
        cause,
        sentence,
        remedy,
        ranks=device.breakdown.ranks,
        confidence=0.6,
        evidence={"share_of_recording": round(share, 4)},
    )


def _busy(device: Device) -> Finding:
    """Nothing but kernels, as far as the device's work is recorded."""
    queued_ns = float(device.idle_ns[QUEUED].sum())
    shown_ns = max(float(device.steps.duration_ns.sum()) - queued_ns, 1.0)
    busy = 1.0 - (float(device.breakdown.parts_ns[IDLE].sum()) - queued_ns) / shown_ns
    largest = device.kernels.by_name[0] if device.kernels.by_name else None
    sentence = (
        f"The device is busy for {busy:.1%} of {milliseconds(shown_ns / device.count)} in which its work is recorded"
    )
    sentence += f"; {shorten(largest.name, 60)} has {largest.share:.0%} of the kernels' time." if largest else "."
    if queued_ns:
        sentence += (
            f" {milliseconds(queued_ns / device.count)} more show nothing although work was queued{during(device, QUEUED)}: it "
            "ran what was launched before the recording began, or what the profiler did not record."
        )
    return plain("healthy", "nothing-found", sentence, confidence=0.6, evidence={"busy_ratio": round(busy, 4)})


def healthy_device(facts: Facts) -> Finding:
    """What the steps of a device go to where nothing stands out."""
    parts, total_ns = facts.breakdown.parts_ns, max(float(facts.breakdown.step_ns.sum()), 1.0)
    names = {
        "kernels of forward": Category.FORWARD,
        "backward": Category.BACKWARD,
        "the optimizer": Category.OPTIMIZER,
        "other kernels": Category.OTHER,
        "collectives that no kernel hides": Category.COLLECTIVE,
        "copies that no kernel hides": Category.H2D,
        "waiting for data": Category.DATA,
    }
    shares = {words: float(parts[str(part)].sum()) / total_ns for words, part in names.items()}
    shares["an idle device"] = float(parts[IDLE].sum()) / total_ns
    shown = ", ".join(f"{share:.0%} {words}" for words, share in shares.items() if share >= 0.005)  # noqa: PLR2004  half a per cent
    return plain(
        "healthy", "nothing-found", f"Nothing stands out: of each {milliseconds(facts.mean_step_ns)} step {shown}."
    )
