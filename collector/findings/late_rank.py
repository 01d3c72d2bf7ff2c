"""Ranks that ask late, in a trace that shows communication only: what negotiations and their ticks tell.

The gain is not more than what tensors wait: what else would hold the step then, such a trace does not show.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from ..facts import Facts
from ..model.arrays import Floats, Mask, Matrix
from ..model.communication_only import OnlyCommunication, look_at_communication, shows_training, step_of
from ..model.pattern import find_pattern
from ..model.peers import find_excess
from ..model.words import milliseconds, name_ranks
from ..predict.gain import gain_of
from ..predict.serial import WAITING_CALLERS
from .base import WORTH_RATIO, Finding
from .latency import messages_take_long

#: Lateness below this share of the step is noise.
MIN_RATIO: Final = 0.1
#: Without ticks lateness has to reach this share of the step in nine steps of ten: ranks that are late in turn, by
#: chance, look the same in the mean.
STEADY_LATENESS_RATIO: Final = 0.15
#: Ticks of this share of the collectives are enough to name a rank.
ENOUGH_TICKS_RATIO: Final = 0.5
#: In late steps the same rank has to be the last one in this share of them, to be named.
STEADY_RATIO: Final = 0.7
#: Waits up to so many cycles may be the cycle's.
MAX_CYCLES: Final = 1.5
#: How sure one can be of a gain when nothing is known of what else the ranks do.
MAX_CONFIDENCE: Final = 0.5
#: A step is late when its tensors wait this many times as long as in the median step.
LATE_STEP_RATIO: Final = 3.0
#: Late steps are a finding of their own up to this share of all; beyond, lateness is the rule.
MAX_LATE_STEPS_RATIO: Final = 0.6
#: The last gradients of a step, as a share of them: they are asked for when all has been computed.
LAST_PART: Final = 0.25
#: What tensors usually wait: not the median, which jumps where they are late in half of the steps.
USUAL_QUANTILE: Final = 0.3
MIN_STEPS: Final = 12
#: In a shorter run a single late step may be its end, or its beginning.
ENOUGH_STEPS: Final = 20
MIN_LATE_OF_FEW: Final = 2

Lateness = Matrix


class LateRank:
    """Some rank asks for its tensors late; with ticks on most operations the rank has a number."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.breakdown.knows_compute or not shows_training(facts):
            return []
        seen = look_at_communication(facts)
        if seen.mean_step_ns <= 0:  # all events have one and the same time: nobody can be late
            return []
        asked = asked_by_rank(facts)
        return _unnamed(facts, seen) if asked is None else _named(facts, seen, *asked)


class LateSteps:
    """In a few steps tensors wait much longer than usual."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.breakdown.knows_compute or not shows_training(facts) or facts.steps.count < MIN_STEPS:
            return []
        seen = look_at_communication(facts)
        asked = asked_by_rank(facts)
        if asked is not None and _named(facts, seen, *asked):
            return []
        # Tensors wait for the same rank one after the other: together longer than it is late, by as much as the last ones.
        late, all_excess = _late_steps(seen, seen.negotiate_ns)
        last_late, last_excess = _late_steps(seen, seen.last_wait_ns)
        is_late, excess = late & last_late, np.minimum(all_excess, last_excess)
        count = int(is_late.sum())
        if count < (1 if len(is_late) >= ENOUGH_STEPS else MIN_LATE_OF_FEW) or count > MAX_LATE_STEPS_RATIO * len(
            is_late
        ):
            return []
        late_ns = np.where(is_late, excess, 0.0)
        gain = seen.ratio(late_ns)
        most = seen.ratio(np.where(is_late, all_excess, 0.0))
        low, high = gain_of(late_ns, seen.step_ns)[1]  # a few steps may be more or fewer by chance
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
                gain_interval=(min(gain / 2, low), max(most, high)),
                confidence=0.4,
                evidence={"steps": numbers[:20], "late_steps": count, "mean_late_ns": round(mean_ns)},
                remedy=(
                    f"Look at what ranks do in steps {shown}: evaluation, logging, checkpoints, a new shard of data, other jobs "
                    "on the host. A recording with tl-run names the rank and the part."
                ),
                sentence=(
                    f"In {count} of {len(is_late)} steps tensors wait {milliseconds(mean_ns)} longer than usual until the last "
                    f"rank has asked for them, at most {most:.0%} of all time; {who}."
                ),
            )
        ]


def _late_steps(seen: OnlyCommunication, waited_ns: Floats) -> tuple[Mask, Floats]:
    """In which steps far more is waited than usual, and how much more in each: bool[S], float[S] (ns)."""
    usual = float(np.quantile(waited_ns, USUAL_QUANTILE))
    excess = np.maximum(waited_ns - usual, 0.0)
    return excess > np.maximum(LATE_STEP_RATIO * usual, MIN_RATIO * np.median(seen.step_ns)), excess


def _last_in(facts: Facts, is_late: Mask) -> int | None:
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


def asked_by_rank(facts: Facts) -> tuple[list[int], Lateness] | None:
    """How long each rank needs in each step until it has asked for the last gradients; None without ticks on most collectives.

    Counted from the end of the step before, when all ranks go on together: their own work.

    Returns:
        The ranks, and float[rank, step], ns.
    """
    arrivals = facts.trace.arrivals
    mine = facts.collectives[(facts.collectives["process_set"] == 0) & (facts.collectives["kind"] == "allreduce")]
    called = mine["seq"][mine["caller"].isin(list(WAITING_CALLERS))]
    arrivals = arrivals[
        (arrivals["process_set"] == 0) & arrivals["seq"].isin(mine["seq"]) & ~arrivals["seq"].isin(called)
    ]
    table = arrivals.pivot(index="seq", columns="rank", values="arrival_ns").dropna()
    if len(table.columns) < 2:  # noqa: PLR2004  nobody to compare with
        return None
    step = step_of(facts, table.min(axis="columns"))
    table, step = table[step >= 0], step[step >= 0]
    inside = facts.in_steps(mine)
    if len(table) < ENOUGH_TICKS_RATIO * len(inside[~inside["seq"].isin(called)]) or not len(table):
        return None
    ends = (
        pd.Series((inside["start_ns"] + inside["dur_ns"]).to_numpy()).groupby(step_of(facts, inside["start_ns"])).max()
    )
    before = ends.reindex(range(-1, facts.steps.count - 1)).to_numpy(dtype=np.float64)
    before = np.where(np.isnan(before), facts.steps.start_ns[0], before)
    # The last ones of a step are asked for when the whole step has been computed.
    place = pd.Series(step).groupby(step).cumcount(ascending=False).to_numpy()
    count = pd.Series(step).groupby(step).transform("size").to_numpy()
    late = place < np.ceil(LAST_PART * count)
    values = table.to_numpy(dtype=np.float64)[late] - before[step[late]][:, None]
    medians = pd.DataFrame(values).groupby(step[late]).median().reindex(range(facts.steps.count))
    return [int(rank) for rank in table.columns], medians.ffill().bfill().to_numpy(dtype=np.float64).T


def _named(facts: Facts, seen: OnlyCommunication, ranks: list[int], asked_ns: Lateness) -> list[Finding]:
    """With ticks the ranks can be compared as by their own work (model/peers.py): one or several, always or now and then."""
    excess = find_excess(asked_ns, seen.mean_step_ns)
    if excess is None:
        return []
    saved_ns = asked_ns.max(axis=0) - (asked_ns - excess.excess_ns).max(axis=0)
    gain = seen.ratio(saved_ns)
    if gain < WORTH_RATIO / 2:
        return []
    slow = excess.slow.any(axis=0)
    late = tuple(sorted(ranks[row] for row in excess.rows))
    pattern = find_pattern(excess.excess_ns.max(axis=0), facts.steps.numbers)
    seldom = float(slow.mean()) <= MAX_LATE_STEPS_RATIO and pattern.kind in {"periodic", "sometimes"}
    late_ns = float(excess.excess_ns.max(axis=0)[slow].mean())
    low, high = gain_of(saved_ns, seen.step_ns)[1]
    who = name_ranks(late, max(facts.trace.meta.size, len(ranks)))
    verb, they = ("asks", "it does") if len(late) == 1 else ("ask", "they do")
    return [
        Finding(
            class_="straggler",
            cause="late-in-some-steps" if seldom else "late-rank",
            ranks=late,
            predicted_gain=gain,
            gain_interval=(min(gain / 2, low), max(seen.ratio(seen.negotiate_ns), gain, high)),
            confidence=MAX_CONFIDENCE,
            evidence={
                "mean_late_ns": round(late_ns),
                "late_by_rank_ns": {str(ranks[row]): round(float(excess.excess_ns[row].mean())) for row in excess.rows},
                "chance_ns": round(excess.spread_ns),
                "negotiate_ratio": round(seen.ratio(seen.negotiate_ns), 3),
                "pattern": pattern.kind,
                **pattern.evidence,
            },
            remedy=(
                f"Find out what {they} before: record the run with tl-run, which shows data loading, forward and backward of "
                "each rank."
            ),
            sentence=(
                f"{who} {verb} for tensors {milliseconds(late_ns)} after the others {pattern.words}; {_waits(seen)}, which is "
                "the most that can be gained. What takes that long, this file does not show."
            ),
        )
    ]


def _unnamed(facts: Facts, seen: OnlyCommunication) -> list[Finding]:
    """Without ticks only the length of negotiations is there: from the first rank's request to the last one's."""
    if messages_take_long(facts, float(np.quantile(seen.wait_ns, 0.25))):
        return []
    low, quarter, half = np.quantile(seen.wait_ns, [0.1, 0.25, 0.5])
    step_ns = float(np.median(seen.step_ns))
    may_be_cycle = quarter < MAX_CYCLES * seen.cycle_ns
    if low < STEADY_LATENESS_RATIO * step_ns or (may_be_cycle and seen.has_cycle_marks):
        return []
    doubt = "; unless Horovod's cycle (HOROVOD_CYCLE_TIME) takes that long" if may_be_cycle else ""
    # Jitter only adds: what nearly all steps have is nearer to the steady lateness than the mean is.
    gain = max(float(quarter), float(np.quantile(seen.last_wait_ns, 0.25))) / seen.mean_step_ns
    gain = min(gain, seen.ratio(seen.negotiate_ns))
    if gain < WORTH_RATIO / 2:  # what tensors wait in the queue, others move meanwhile
        return []
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
