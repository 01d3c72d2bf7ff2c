"""Ranks that ask late, in a trace that shows communication only: what negotiations and their ticks tell.

The gain is not more than what tensors wait: what else would hold the step then, such a trace does not show.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from ..facts import Facts
from ..model.communication_only import OnlyCommunication, look_at_communication, shows_training, step_of
from ..model.words import milliseconds
from .base import Finding

#: Lateness below this share of the step is noise.
LEAST_RATIO: Final = 0.1
#: Without ticks lateness has to reach this share of the step in nine steps of ten: ranks that are late in turn, by
#: chance, look the same in the mean.
STEADY_LATENESS_RATIO: Final = 0.15
#: Ticks of this share of the collectives are enough to name a rank.
ENOUGH_TICKS_RATIO: Final = 0.5
#: The rank has to be the last one in this share of the steps.
STEADY_RATIO: Final = 0.7
#: Waits up to so many cycles may be the cycle's.
MAX_CYCLES: Final = 1.5
#: How sure one can be of a gain when nothing is known of what else the ranks do.
MAX_CONFIDENCE: Final = 0.5
#: A step is late when its tensors wait this many times as long as in the median step.
LATE_STEP_RATIO: Final = 3.0
#: Late steps are a finding of their own up to this share of all; beyond, lateness is the rule.
MAX_LATE_STEPS_RATIO: Final = 0.6
#: What tensors usually wait: not the median, which jumps where they are late in half of the steps.
USUAL_QUANTILE: Final = 0.3
MIN_STEPS: Final = 12
#: In a shorter run a single late step may be its end, or its beginning.
ENOUGH_STEPS: Final = 20
MIN_LATE_OF_FEW: Final = 2

Lateness = np.ndarray[tuple[int, int], np.dtype[np.float64]]


class LateRank:
    """Some rank asks for its tensors late; with ticks on most operations the rank has a number."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.breakdown.knows_compute or not shows_training(facts):
            return []
        seen = look_at_communication(facts)
        if seen.mean_step_ns <= 0:  # all events have one and the same time: nobody can be late
            return []
        late = lateness_by_rank(facts)
        return _unnamed(seen) if late is None else _named(seen, *late)


class LateSteps:
    """In a few steps tensors wait much longer than usual."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.breakdown.knows_compute or not shows_training(facts) or facts.steps.count < MIN_STEPS:
            return []
        seen = look_at_communication(facts)
        usual = float(np.quantile(seen.negotiate_ns, USUAL_QUANTILE))
        excess = np.maximum(seen.negotiate_ns - usual, 0.0)
        is_late = excess > np.maximum(LATE_STEP_RATIO * usual, LEAST_RATIO * np.median(seen.step_ns))
        count = int(is_late.sum())
        if count < (1 if len(is_late) >= ENOUGH_STEPS else MIN_LATE_OF_FEW) or count > MAX_LATE_STEPS_RATIO * len(
            is_late
        ):
            return []
        late_ns = np.where(is_late, excess, 0.0)
        gain = seen.ratio(late_ns)
        numbers = [int(number) for number in facts.steps.numbers[is_late]]
        shown = ", ".join(map(str, numbers[:5])) + (", …" if len(numbers) > 5 else "")  # noqa: PLR2004  a line's worth
        mean_ns = float(late_ns[is_late].mean())
        rank = _last_in(facts, is_late)
        who = "which rank that is, this file does not say" if rank is None else f"it is rank {rank}"
        return [
            Finding(
                class_="straggler",
                cause="late-in-some-steps",
                ranks=() if rank is None else (rank,),
                predicted_gain=gain,
                gain_interval=(gain / 2, gain),
                confidence=0.4,
                evidence={"steps": numbers[:20], "late_steps": count, "mean_late_ns": round(mean_ns)},
                remedy=(
                    f"Look at what ranks do in steps {shown}: evaluation, logging, checkpoints, a new shard of data, other jobs "
                    "on the host. A recording with tl-run names the rank and the part."
                ),
                sentence=(
                    f"In {count} of {len(is_late)} steps tensors wait {milliseconds(mean_ns)} longer than usual until the last "
                    f"rank has asked for them, at most {gain:.0%} of all time; {who}."
                ),
            )
        ]


def _last_in(facts: Facts, is_late: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int | None:
    """The rank that asks last in most of these steps, if ticks tell."""
    late = lateness_by_rank(facts)
    if late is None:
        return None
    last = np.argmax(late[1][:, is_late], axis=0)
    counts = np.bincount(last, minlength=len(late[0]))
    return late[0][int(counts.argmax())] if counts.max() >= STEADY_RATIO * len(last) else None


def lateness_by_rank(facts: Facts) -> tuple[list[int], Lateness] | None:
    """For each rank and step how far its ticks are behind the last of the others; None without ticks on most collectives.

    Returns:
        The ranks, and float[rank, step]: the median over the step's collectives, ns, negative for a rank that is never last.
    """
    arrivals = facts.trace.arrivals
    table = arrivals[arrivals["process_set"] == 0].pivot(index="seq", columns="rank", values="arrival_ns").dropna()
    if len(table.columns) < 2:  # noqa: PLR2004  nobody to compare with
        return None
    step = step_of(facts, table.min(axis="columns"))
    table, step = table[step >= 0], step[step >= 0]
    if len(table) < ENOUGH_TICKS_RATIO * len(facts.in_steps(facts.collectives)):
        return None
    ranks = [int(rank) for rank in table.columns]
    values = table.to_numpy(dtype=np.float64)
    behind = np.stack(
        [values[:, row] - np.delete(values, row, axis=1).max(axis=1) for row in range(len(ranks))], axis=1
    )
    medians = pd.DataFrame(behind).groupby(step).median().reindex(range(facts.steps.count)).fillna(0.0)
    return ranks, medians.to_numpy(dtype=np.float64).T


def _named(seen: OnlyCommunication, ranks: list[int], lateness: Lateness) -> list[Finding]:
    row = int(np.argmax(lateness.mean(axis=1)))
    last_ratio = float((lateness[row] > 0).mean())
    gain = seen.ratio(np.maximum(lateness[row], 0.0))
    if gain < LEAST_RATIO or last_ratio < STEADY_RATIO:
        return []
    late_ns = float(lateness[row].mean())
    most = max(seen.ratio(seen.negotiate_ns), gain)
    return [
        Finding(
            class_="straggler",
            cause="late-rank",
            ranks=(ranks[row],),
            predicted_gain=gain,
            gain_interval=(gain / 2, most),
            confidence=MAX_CONFIDENCE,
            evidence={
                "mean_late_ns": round(late_ns),
                "last_in_steps_ratio": last_ratio,
                "negotiate_ratio": round(seen.ratio(seen.negotiate_ns), 3),
            },
            remedy=(
                f"Find out what rank {ranks[row]} does before it asks for its tensors: record the run with tl-run, "
                "which shows its data loading, forward and backward."
            ),
            sentence=(
                f"Rank {ranks[row]} asks for its tensors {milliseconds(late_ns)} after the others, in {last_ratio:.0%} of "
                f"the steps; {_waits(seen)}, which is the most that can be gained. What keeps rank {ranks[row]}, this file does "
                "not show."
            ),
        )
    ]


def _unnamed(seen: OnlyCommunication) -> list[Finding]:
    """Without ticks only the length of negotiations is there: from the first rank's request to the last one's."""
    low, quarter, half = np.quantile(seen.wait_ns, [0.1, 0.25, 0.5])
    step_ns = float(np.median(seen.step_ns))
    may_be_cycle = quarter < MAX_CYCLES * seen.cycle_ns
    if low < STEADY_LATENESS_RATIO * step_ns or (may_be_cycle and seen.has_cycle_marks):
        return []
    doubt = "; unless Horovod's cycle (HOROVOD_CYCLE_TIME) takes that long" if may_be_cycle else ""
    # Jitter only adds: what nearly all steps have is nearer to the steady lateness than the mean is.
    gain = float(quarter) / seen.mean_step_ns
    return [
        Finding(
            class_="straggler",
            cause="late-rank",
            ranks=(),
            predicted_gain=gain,
            gain_interval=(gain / 2, max(seen.ratio(seen.negotiate_ns), gain)),
            confidence=MAX_CONFIDENCE,
            evidence={
                "negotiation_quantiles_ns": {"10": round(low), "25": round(quarter), "50": round(half)},
                "negotiate_ratio": round(seen.ratio(seen.negotiate_ns), 3),
            },
            remedy=(
                "Find out which rank it is: record with tl-run, or run Horovod with HOROVOD_CACHE_CAPACITY=0, which makes it "
                "note every rank's request."
            ),
            sentence=(
                f"Some rank asks for its tensors about {milliseconds(float(quarter))} after another, at each step; "
                f"{_waits(seen)}, which is the most that can be gained{doubt}. Which rank it is, this file has no ticks to say."
            ),
        )
    ]


def _waits(seen: OnlyCommunication) -> str:
    return (
        f"tensors wait for it during {milliseconds(float(seen.negotiate_ns.mean()))} of each "
        f"{milliseconds(seen.mean_step_ns)} step ({seen.ratio(seen.negotiate_ns):.0%})"
    )
