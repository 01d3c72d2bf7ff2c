"""One rank works longer than the others, and they wait for it."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ...timeline.vocabulary import Category
from ..model.breakdown import EXPOSED
from ..model.facts import Facts
from ..model.words import milliseconds
from ..predict.gain import gain_of
from .base import Finding
from .root_cause import root_cause

#: A rank has to be this much slower, in steps, to be called slow.
LEAST_RATIO: Final = 0.02
#: Fewer steps than this show nothing but chance.
LEAST_STEPS: Final = 6
#: The mean excess has to be so many standard errors above nothing.
SIGNIFICANT: Final = 3.0
#: A rank that is slow now and then is so by at least this share of a step, and at least so often.
SPIKE_RATIO: Final = 0.3
LEAST_SPIKES: Final = 3
#: Spikes that make so much of all the time that it is behind tell more than the mean over all steps.
MOST_OF_IT: Final = 0.7

_CAUSES: Final = {
    str(Category.FORWARD): ("slow-forward", "in forward"),
    str(Category.BACKWARD): ("slow-backward", "in backward"),
    str(Category.OPTIMIZER): ("slow-optimizer", "in the optimizer step"),
    str(Category.CHECKPOINT): ("checkpoint-on-one-rank", "writing checkpoints"),
    str(Category.H2D): ("slow-copy-to-device", "copying to the device"),
    str(Category.OTHER): ("slow-host-code", "in code outside data loading, forward, backward and optimizer"),
}

_REMEDIES: Final = {
    "forward": "look at what the model's forward does there alone (its data, a sleep or lock, the device's clocks, other "
    "processes on its cores).",
    "backward": "look at its device and cores: throttling, other processes, fewer threads than the others.",
    "optimizer": "look at what the optimizer does there alone (logging, copies, other processes on its cores).",
    "checkpoint": "write checkpoints less often, or in the background.",
    "h2d": "pin the memory of its loader and copy with non_blocking=True.",
    "other": "look at what it alone runs between the calls of the training loop (logging, evaluation, metrics, input "
    "preparation).",
}


class SlowRank:
    """A rank whose own computation holds up the others, always or now and then."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding: the slowest rank, compared in every step with the slowest of the others."""
        work = facts.breakdown.own_work_ns - facts.part(str(Category.DATA))
        if not facts.breakdown.knows_compute or len(facts.ranks) < 2 or facts.steps.count < LEAST_STEPS:  # noqa: PLR2004  nobody to compare with
            return []
        if facts.is_tied_by_messages:
            return []
        row = int(np.argmax(work.mean(axis=1)))
        others = np.delete(work, row, axis=0)
        excess_ns = (work[row] - others.max(axis=0)).astype(np.float64)
        error_ns = excess_ns.std() / len(excess_ns) ** 0.5
        height_ns = _spike_height_ns(excess_ns, float(np.median(facts.breakdown.step_ns)))
        spikes, opposite = excess_ns > height_ns, excess_ns < -height_ns
        # Chance makes ranks late in turn; a slow rank is late by more than all that the others are.
        now_and_then = spikes.sum() >= LEAST_SPIKES and excess_ns[spikes].sum() > 4 * -excess_ns[opposite].sum()
        is_most_of_it = excess_ns[spikes].sum() > MOST_OF_IT * excess_ns[excess_ns > 0].sum()
        if now_and_then and is_most_of_it and 2 * spikes.sum() < len(spikes):
            # Whatever little it is behind in the other steps.
            return self._describe(facts, row, excess_ns, spikes)
        if excess_ns.mean() > SIGNIFICANT * error_ns and np.median(excess_ns) > 0:
            # Steps in which chance made another rank last count against it: what is left is the rank's own.
            return self._describe(facts, row, excess_ns, np.ones(len(excess_ns), dtype=bool))
        return self._describe(facts, row, excess_ns, spikes) if now_and_then else []

    @staticmethod
    def _describe(
        facts: Facts,
        row: int,
        excess_ns: np.ndarray[tuple[int], np.dtype[np.float64]],
        slow: np.ndarray[tuple[int], np.dtype[np.bool_]],
    ) -> list[Finding]:
        """The finding for the rank in `row`, which is slow in the steps `slow`."""
        steady = bool(slow.all())
        changed = facts.breakdown.own_work_ns.astype(np.float64)
        changed[row] -= np.where(slow, excess_ns, 0)
        saved_ns = facts.breakdown.own_work_ns.max(axis=0) - changed.max(axis=0)
        # The other ranks' chance of being last does not go away: the signed mean, not the mean of what is positive.
        gain, interval = gain_of(np.minimum(saved_ns, excess_ns) if steady else saved_ns, facts.mean_step_ns)
        if gain < LEAST_RATIO:
            return []
        rank, last_ratio = facts.ranks[row], float((excess_ns > 0).mean())
        by_part = {part: _excess_of_part(facts, part, row, slow) for part in _CAUSES}
        part = max(by_part, key=by_part.__getitem__)
        cause, where = _CAUSES[part]
        waits_ns = np.sum([facts.part(name) for name in EXPOSED], axis=0).mean(axis=1)
        evidence: dict[str, Any] = {
            "mean_excess_ns": round(float(excess_ns[slow].mean())),
            "excess_by_category_ns": {name: round(value) for name, value in by_part.items()},
            "slow_steps_ratio": float(slow.mean()),
            "last_in_steps_ratio": last_ratio,
            "mean_wait_by_rank_ns": {
                str(number): round(float(wait)) for number, wait in zip(facts.ranks, waits_ns, strict=True)
            },
            **_arrival_evidence(facts, rank),
        }
        why = root_cause(facts, row, slow, float(excess_ns[slow].mean()))
        evidence["root_cause"] = {"is": why.slug, **why.evidence}
        if why.slug == "uneven-batches":
            cause = why.slug
        others = "the other rank waits" if len(facts.ranks) == 2 else "the others wait"  # noqa: PLR2004
        when = "every step" if steady else f"{slow.mean():.0%} of the steps"
        return [
            Finding(
                class_="straggler",
                cause=cause if steady else f"periodic-{cause}",
                ranks=(rank,),
                predicted_gain=gain,
                gain_interval=interval,
                confidence=float(np.clip(last_ratio if steady else 0.8, 0.5, 0.99)),
                evidence=evidence,
                remedy=f"Rank {rank}: {why.remedy or _REMEDIES[part]}",
                sentence=(
                    f"Rank {rank} works {milliseconds(float(excess_ns[slow].mean()))} longer than any other rank in "
                    f"{when}, {where}{why.sentence and ': ' + why.sentence}; {others} for it."
                ),
            )
        ]


def _spike_height_ns(excess_ns: np.ndarray[tuple[int], np.dtype[np.float64]], step_ns: float) -> float:
    """From where on a single excess is no jitter: a share of the step, and well outside the usual spread.

    1.4826 times the median absolute deviation is the standard deviation of normal noise.
    """
    usual = np.median(excess_ns)
    spread = 1.4826 * float(np.median(np.abs(excess_ns - usual)))
    return max(SPIKE_RATIO * step_ns, 4 * spread)


def _excess_of_part(facts: Facts, part: str, row: int, slow: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
    """How much longer the rank spends on a part than the others' median, on average over the slow steps (ns)."""
    values = facts.part(part)[:, slow]
    others = np.median(np.delete(values, row, axis=0), axis=0)
    return float((values[row] - others).mean())


def _arrival_evidence(facts: Facts, rank: int) -> dict[str, Any]:
    """How often this rank was the last to be ready for a collective, and by how much."""
    arrivals = facts.trace.arrivals
    complete = arrivals.groupby(["process_set", "seq"], observed=True)["rank"].transform("size") == len(facts.ranks)
    table = arrivals[complete].pivot(index=["process_set", "seq"], columns="rank", values="arrival_ns")
    if table.empty or rank not in table.columns:
        return {}
    behind = table[rank] - table.drop(columns=rank).max(axis="columns")
    return {
        "last_to_arrive_ratio": float((behind > 0).mean()),
        "median_arrival_behind_others_ns": round(float(behind.median())),
    }
