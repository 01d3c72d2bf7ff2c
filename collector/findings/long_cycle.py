"""Horovod's background thread sleeps too long between its cycles: tensors wait for the next one."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..facts import Facts
from ..model.communication_only import look_at_communication, shows_training
from ..model.words import milliseconds
from .base import Finding
from .late_rank import MAX_CONFIDENCE

#: Horovod's default is 1 ms (5 ms until 0.21); only a longer cycle was asked for.
MIN_CYCLE_NS: Final = 6_000_000
#: A cycle below this share of the step costs little.
MIN_CYCLE_RATIO: Final = 0.05
#: Tensors have to wait for this share of the step.
MIN_WAIT_RATIO: Final = 0.1
#: Where the median wait is this many cycles, something else than the cycle is waited for.
MAX_CYCLES: Final = 2.5


class LongCycle:
    """HOROVOD_CYCLE_TIME is long against the step, and tensors wait about as long."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.breakdown.knows_compute or not shows_training(facts):
            return []
        seen = look_at_communication(facts)
        cycle_ns, step_ns = seen.cycle_ns, seen.mean_step_ns
        waits = seen.ratio(seen.negotiate_ns)
        if cycle_ns < max(MIN_CYCLE_NS, MIN_CYCLE_RATIO * step_ns) or waits < MIN_WAIT_RATIO:
            return []
        if float(np.median(seen.wait_ns)) > MAX_CYCLES * cycle_ns:
            return []
        # A tensor waits for half a cycle until it is looked at, which no file shows, and for a whole one if a rank has missed it.
        gain = seen.ratio(np.minimum(seen.negotiate_ns, cycle_ns))
        known = "marks of its cycles are" if seen.has_cycle_marks else "all that it does is"
        return [
            Finding(
                class_="communication",
                cause="long-cycle",
                ranks=(),
                predicted_gain=gain,
                gain_interval=(gain / 3, min(max(waits, gain) + cycle_ns / step_ns, 0.95)),
                confidence=MAX_CONFIDENCE if seen.has_cycle_marks else 0.4,
                evidence={
                    "cycle_ns": round(cycle_ns),
                    "negotiate_ratio": round(waits, 3),
                    "has_cycle_marks": seen.has_cycle_marks,
                },
                remedy="Lower HOROVOD_CYCLE_TIME (its default is 1, in ms) and measure again.",
                sentence=(
                    f"Horovod looks for ready tensors only every {milliseconds(cycle_ns)} ({known} at least that far apart); "
                    f"tensors wait during {milliseconds(float(seen.negotiate_ns.mean()))} of each {milliseconds(step_ns)} step "
                    f"({waits:.0%}), at most {gain:.0%} of it because of the cycle."
                ),
            )
        ]
