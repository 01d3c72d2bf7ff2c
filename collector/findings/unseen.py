"""The verdict on a trace that shows communication only: a finding, or which part of the step it cannot explain."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..facts import Facts
from ..model.communication_only import OnlyCommunication, look_at_communication, shows_training
from ..model.words import milliseconds
from .base import Finding
from .late_rank import lateness_by_rank
from .plain import plain

#: A finding that gains less than this share of what is unexplained is not the answer.
MIN_EXPLAINED_RATIO: Final = 0.5
#: A cycle below this share of what tensors wait is not the reason.
SHORT_CYCLE_RATIO: Final = 0.3
#: Causes that explain why tensors wait.
EXPLAINS_WAITS: Final = frozenset({"late-rank", "late-in-some-steps", "long-cycle"})

_RECORD: Final = (
    "HOROVOD_TIMELINE=t.json tl-run -np N python train.py records data loading, forward, backward and optimizer, too."
)


def verdict_of_communication(facts: Facts, worthy: Sequence[Finding]) -> Finding:
    """The best of `worthy` (largest gain first), unless more of the step is unexplained than it would save."""
    if not shows_training(facts):
        rounds = facts.steps.count + facts.steps.excluded
        return plain(
            "unknown",
            "no-steps",
            f"There is no training to judge in this trace: its tensors come back {rounds} times only. Record at least ten steps.",
            "Record a longer run.",
        )
    seen = look_at_communication(facts)
    waits, outside = seen.ratio(seen.negotiate_ns), seen.ratio(seen.outside_ns)
    if worthy:
        unexplained = outside if worthy[0].cause in EXPLAINS_WAITS else max(waits, outside)
        if worthy[0].predicted_gain >= MIN_EXPLAINED_RATIO * unexplained:
            return worthy[0]
    return _waiting(facts, seen) if waits > outside else _outside(seen)


def _shares(seen: OnlyCommunication) -> dict[str, float]:
    return {
        "negotiate_ratio": round(seen.ratio(seen.negotiate_ns), 3),
        "moving_ratio": round(seen.ratio(seen.moving_ns), 3),
        "outside_ratio": round(seen.ratio(seen.outside_ns), 3),
    }


def _outside(seen: OnlyCommunication) -> Finding:
    return plain(
        "unknown",
        "time-outside-communication",
        f"{seen.ratio(seen.outside_ns):.0%} of each {milliseconds(seen.mean_step_ns)} step passes without communication; whether "
        "data loading or computation takes it, this trace does not say. For "
        f"{seen.ratio(seen.negotiate_ns):.0%} tensors wait until the last rank has asked for them, for "
        f"{seen.ratio(seen.moving_ns):.0%} bytes move. Record the run with tl-run.",
        _RECORD,
        evidence=_shares(seen),
    )


def _waiting(facts: Facts, seen: OnlyCommunication) -> Finding:
    late = lateness_by_rank(facts)
    if late is not None:
        last = np.argmax(late[1], axis=0)
        shares = ", ".join(f"rank {rank} in {float((last == row).mean()):.0%}" for row, rank in enumerate(late[0][:8]))
        who = f"the last to ask changes ({shares} of the steps)"
    else:
        low, high = np.quantile(seen.wait_ns, [0.1, 0.9])
        who = (
            f"the wait differs from step to step (a tensor's: {milliseconds(float(low))} to {milliseconds(float(high))}), so no "
            "rank is late by the same time in each"
        )
    cycle = ""
    if 0 < seen.cycle_ns < SHORT_CYCLE_RATIO * float(np.median(seen.wait_ns)):
        bound = "about every" if seen.has_cycle_marks else "at least every"
        cycle = (
            f" Horovod looks for ready tensors {bound} {milliseconds(seen.cycle_ns)}, so its cycle is not the reason."
        )
    return plain(
        "unknown",
        "waiting-for-ranks",
        f"During {milliseconds(float(seen.negotiate_ns.mean()))} of each {milliseconds(seen.mean_step_ns)} step "
        f"({seen.ratio(seen.negotiate_ns):.0%}) tensors wait until the last rank has asked for them; {who}.{cycle} Uneven work "
        "or too few cores are usual reasons; this trace does not say. Record the run with tl-run.",
        _RECORD,
        evidence=_shares(seen),
    )
