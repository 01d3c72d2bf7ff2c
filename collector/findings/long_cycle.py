"""Horovod's background thread sleeps too long between its cycles: tensors wait for the next one."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..facts import Facts
from ..model.communication_only import OnlyCommunication, look_at_communication, shows_training
from ..model.words import milliseconds
from ..predict.serial import one_after_another
from .base import WORTH_RATIO, Finding
from .late_rank import MAX_CONFIDENCE
from .latency import messages_take_long, of_gradients_ns

#: Horovod's default is 1 ms (5 ms until 0.21); only a longer cycle was asked for.
MIN_CYCLE_NS: Final = 6_000_000
#: To agree takes less at Horovod's default cycle.
MIN_AGREEING_NS: Final = 750_000
#: A cycle below this share of the step costs little.
MIN_CYCLE_RATIO: Final = 0.05
#: Tensors have to wait for this share of the step.
MIN_WAIT_RATIO: Final = 0.1
#: Where the median wait is this many cycles, something else than the cycle is waited for.
MAX_CYCLES: Final = 2.5
#: Something is left of a step.
MAX_GAIN: Final = 0.95


class LongCycle:
    """HOROVOD_CYCLE_TIME is long against the step, and tensors wait about as long."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.breakdown.knows_compute or not shows_training(facts):
            return []
        seen = look_at_communication(facts)
        cycle_ns, step_ns = seen.cycle_ns, seen.mean_step_ns
        agreeing_ns = float(np.median(seen.agreeing_ns))
        if messages_take_long(facts, agreeing_ns):
            return []
        if agreeing_ns >= MIN_AGREEING_NS:
            serial = one_after_another(facts, of_gradients_ns(facts))
            gain = seen.ratio(serial.saved_ns(agreed_sooner_ns=agreeing_ns))
            if gain >= WORTH_RATIO:
                what = "All ranks have asked for a tensor {0} before they learn that they have (median)"
                return [_finding(seen, agreeing_ns, what, gain)]
        if not seen.has_cycle_marks or cycle_ns < max(MIN_CYCLE_NS, MIN_CYCLE_RATIO * step_ns):
            return []
        if seen.ratio(seen.negotiate_ns) < MIN_WAIT_RATIO or float(np.median(seen.wait_ns)) > MAX_CYCLES * cycle_ns:
            return []
        what = "Horovod looks for ready tensors only every {0}, by the marks of its cycles"
        return [_finding(seen, cycle_ns, what, seen.ratio(np.minimum(seen.negotiate_ns, cycle_ns)))]


def _finding(seen: OnlyCommunication, length_ns: float, what: str, gain: float) -> Finding:
    """Of a cycle of this length.

    A tensor waits for half a cycle until it is looked at, which Horovod's file does not show, and for a whole one if a rank has
    missed it.
    """
    waits, step_ns = seen.ratio(seen.negotiate_ns), seen.mean_step_ns
    return Finding(
        class_="communication",
        cause="long-cycle",
        ranks=(),
        predicted_gain=gain,
        gain_interval=(gain / 3, min(max(waits, gain) + length_ns / step_ns, MAX_GAIN)),
        confidence=MAX_CONFIDENCE,
        evidence={
            "cycle_ns": round(seen.cycle_ns),
            "agreeing_ns": round(float(np.median(seen.agreeing_ns))),
            "negotiate_ratio": round(waits, 3),
        },
        remedy="Lower HOROVOD_CYCLE_TIME (its default is 1, in ms) and measure again.",
        sentence=(
            f"{what.format(milliseconds(length_ns))}; tensors wait during {milliseconds(float(seen.negotiate_ns.mean()))} of "
            f"each {milliseconds(step_ns)} step ({waits:.0%}), at most {gain:.0%} because of the cycle."
        ),
    )
