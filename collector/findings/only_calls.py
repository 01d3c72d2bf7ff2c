"""Blocking calls of user code in a trace that shows communication only: metrics averaged one by one, objects, barriers."""

from typing import Final

import numpy as np

from ..facts import Facts
from ..model.communication_only import OnlyCommunication
from ..model.words import milliseconds, shorten
from ..predict.serial import Serial
from .base import Finding
from .late_rank import MAX_CONFIDENCE

#: Calls below this share of the steps are not worth a word.
MIN_RATIO: Final = 0.02
#: Of calls whose names do not say what they are one cannot be so sure.
BY_ORDER_ALONE: Final = 0.8

_CAUSES: Final = {"object": "object-collectives", "barrier": "barriers"}


def blocking_calls(facts: Facts, seen: OnlyCommunication, serial: Serial) -> list[Finding]:
    """At most one finding."""
    calls = serial.table[serial.is_call]
    if calls.empty:
        return []
    gain = seen.ratio(serial.saved_ns(gone=serial.is_call))
    if gain < MIN_RATIO:
        return []
    took_ns = (serial.end_ns - serial.asked_ns)[serial.is_call]
    count = len(calls) / facts.steps.count
    caller = str(calls["caller"].astype(str).mode().iloc[0])
    names = _names(facts, serial)
    shown = f" ({', '.join(shorten(name, 40) for name in names[:3])}{', …' if len(names) > 3 else ''})"  # noqa: PLR2004  a line's worth
    return [
        Finding(
            class_="communication",
            cause=_CAUSES.get(caller, "blocking-calls"),
            ranks=(),
            predicted_gain=gain,
            gain_interval=(gain * (1.0 if caller else BY_ORDER_ALONE) / 2, gain),
            confidence=MAX_CONFIDENCE,
            evidence={
                "calls_per_step": round(count, 1),
                "median_call_ns": round(float(np.median(took_ns))),
                "caller": caller,
                "tensors": [shorten(name) for name in names[:20]],
            },
            remedy=(
                "Average what is measured with one call (put the numbers into one tensor), every 50 steps, or with "
                "allreduce_async and a wait when the numbers are printed."
            ),
            sentence=(
                f"{count:.0f} collectives a step{shown} come one after the other, each asked for when the one before is through: "
                f"the training waits {milliseconds(float(np.median(took_ns)))} for each, {gain:.0%} of all time."
            ),
        )
    ]


def _names(facts: Facts, serial: Serial) -> list[str]:
    tensors = facts.trace.tensors
    mine = tensors[tensors["seq"].isin(serial.table["seq"][serial.is_call])]
    return [str(name) for name in mine["name"].value_counts().index[:20]]
