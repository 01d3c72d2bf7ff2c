"""What only shows over the whole run: it becomes slower, or stalls now and then."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from ..facts import Facts, Outcome
from ..model.breakdown import EXPOSED, PARTS
from ..model.words import milliseconds
from ..predict.change import Change, removed
from .base import WORTH_RATIO, Finding

#: Fewer steps than this show no trend.
LEAST_STEPS: Final = 20
#: Thirds of the run that a slow-down has to show in, and by how much.
DRIFT_RATIO: Final = 0.08
#: A step this many times as long as the median is an outlier.
OUTLIER_RATIO: Final = 1.5
#: At least that many stalls before a rhythm is looked for.
LEAST_STALLS: Final = 3
#: Distances between stalls that vary by less than this share are a rhythm.
REGULAR: Final = 0.25
#: A stall is one part's if that part has this much of the excess.
ONE_PART: Final = 0.5


def _step_ns(facts: Facts) -> np.ndarray:
    steps: np.ndarray = facts.steps.job_ns.astype(float)
    return steps


class SlowingDown:
    """Steps take longer and longer."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        steps = _step_ns(facts)
        if len(steps) < LEAST_STEPS:
            return []
        first, second, third = (float(np.median(part)) for part in np.array_split(steps, 3))
        # Every third has to be slower, so that one disturbance is no trend.
        if not (second > first * (1 + DRIFT_RATIO / 3) and third > second * (1 + DRIFT_RATIO / 3)):
            return []
        if third < first * (1 + DRIFT_RATIO) or not _is_trend(steps):
            return []
        quicker = np.minimum(1.0, first / np.maximum(steps, 1.0))
        outcome = (
            _all_times(facts, quicker)
            if facts.replay is not None
            else facts.outcome_of(steps - np.minimum(steps, first), Change())
        )
        part, by_part = _part_that_grew(facts)
        return [
            Finding(
                class_="compute"
                if part not in {"data", "collective", "negotiate", "queue", "fusion"}
                else _class_of(part),
                cause="slowing-down",
                ranks=facts.ranks,
                predicted_gain=outcome.gain,
                gain_interval=outcome.interval,
                outcome=outcome,
                confidence=0.6,
                evidence={
                    "first_third_ns": round(first),
                    "last_third_ns": round(third),
                    "part": part,
                    "growth_by_part_ns": by_part,
                },
                remedy=(
                    "Look for what piles up: a list of losses that keeps graphs alive, growing inputs, a cache or a log file, "
                    "memory that is swapped, a device that becomes hot (nvidia-smi -q -d PERFORMANCE)."
                ),
                sentence=(
                    f"Steps become slower: {milliseconds(first)} in the first third of the run, {milliseconds(third)} in the "
                    f"last; {part} grows most."
                ),
            )
        ]


def _all_times(facts: Facts, factor: np.ndarray) -> Outcome:
    """All work and all operations of each step so many times as long: float[step]."""
    graph = facts.replay.graph if facts.replay is not None else None
    assert graph is not None
    step = np.clip(np.searchsorted(graph.steps.end_ns.max(axis=0), graph.operations.end_ns), 0, facts.steps.count - 1)
    of_operation = factor[step]
    work = dict.fromkeys([part for part in PARTS if part not in EXPOSED], factor)
    return facts.outcome(
        Change(work=work, latency=of_operation, transfer=of_operation, negotiation=of_operation, loading=factor)
    )


def _without_stalls(facts: Facts, stalled: np.ndarray) -> Outcome:
    """Stalled steps as the usual ones: every part no longer than the rank's median, every operation than those of its size."""
    graph = facts.replay.graph if facts.replay is not None else None
    assert graph is not None
    work = {}
    for part in PARTS:
        values = facts.part(part).astype(float)
        usual = np.median(values[:, ~stalled], axis=1, keepdims=True)
        work[part] = np.where(stalled, removed(values, values - usual), 1.0)
    operations = graph.operations
    step = np.clip(np.searchsorted(graph.steps.end_ns.max(axis=0), operations.end_ns), 0, facts.steps.count - 1)
    took = pd.DataFrame({"nbytes": operations.nbytes, "took": operations.duration_ns.astype(float)})
    usual_ns = took.groupby("nbytes")["took"].transform("median").to_numpy()
    quicker = np.where(stalled[step], removed(took["took"].to_numpy(), took["took"].to_numpy() - usual_ns), 1.0)
    return facts.outcome(Change(work=work, latency=quicker, transfer=quicker, loading=np.where(stalled, 0.0, 1.0)))


def _is_trend(steps: np.ndarray) -> bool:
    """Mann-Kendall: whether later steps are longer more often than chance makes them (z above 4)."""
    chosen = steps[:: max(1, len(steps) // 400)]
    count = len(chosen)
    signs = np.sign(chosen[None, :] - chosen[:, None])
    score = float(np.triu(signs, 1).sum())
    deviation = (count * (count - 1) * (2 * count + 5) / 18) ** 0.5
    return bool(score / deviation > 4)  # noqa: PLR2004


def _part_that_grew(facts: Facts) -> tuple[str, dict[str, int]]:
    growth = {}
    for name in PARTS:
        values = facts.part(name).mean(axis=0)
        third = max(len(values) // 3, 1)
        growth[name] = round(float(values[-third:].mean() - values[:third].mean()))
    return max(growth, key=growth.__getitem__), {name: value for name, value in growth.items() if value}


def _class_of(part: str) -> str:
    return "data" if part == "data" else "communication"


class Stalls:
    """A few steps take much longer than the others, perhaps in a rhythm."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        steps = _step_ns(facts)
        if len(steps) < LEAST_STEPS:
            return []
        usual = float(np.median(steps))
        spread = 1.4826 * float(np.median(np.abs(steps - usual)))
        stalled = steps > max(OUTLIER_RATIO * usual, usual + 6 * spread)
        count = int(stalled.sum())
        if not count or count > len(steps) // 4:
            return []
        outcome = (
            _without_stalls(facts, stalled)
            if facts.replay is not None
            else facts.outcome_of(np.where(stalled, steps - usual, 0.0), Change())
        )
        if outcome.gain < WORTH_RATIO / 2:
            return []
        part, share = _part_of_stalls(facts, stalled)
        numbers = facts.steps.numbers[stalled]
        distances = np.diff(numbers)
        regular = count >= LEAST_STALLS and float(distances.std()) < REGULAR * float(distances.mean())
        evidence: dict[str, Any] = {
            "steps": [int(number) for number in numbers[:20]],
            "stalls": count,
            "mean_stall_ns": round(float((steps[stalled] - usual).mean())),
            "part": part,
            "share_of_part": round(share, 2),
        }
        when = f"every {distances.mean():.0f} steps" if regular else f"in {count} of {len(steps)} steps"
        class_ = {"data": "data", "collective": "communication", "negotiate": "communication"}.get(part, "compute")
        return [
            Finding(
                class_=class_,
                cause="periodic-stalls" if regular else "outlier-steps",
                ranks=facts.ranks,
                predicted_gain=outcome.gain,
                gain_interval=outcome.interval,
                outcome=outcome,
                confidence=0.6 if share > ONE_PART else 0.4,
                evidence=evidence,
                remedy=(
                    "Look at what happens then"
                    + (f", every {distances.mean():.0f} steps" if regular else f" (steps {_some(numbers)})")
                    + ": evaluation, logging, checkpoints, a new shard of data, garbage collection, other jobs on the host."
                ),
                sentence=(
                    f"The training stalls {when} for {milliseconds(float((steps[stalled] - usual).mean()))}, "
                    f"most of it in {part}."
                ),
            )
        ]


def _some(numbers: np.ndarray) -> str:
    return ", ".join(map(str, numbers[:5])) + (", …" if len(numbers) > 5 else "")  # noqa: PLR2004


def _part_of_stalls(facts: Facts, stalled: np.ndarray) -> tuple[str, float]:
    """The part that has most of what stalled steps take longer, on the critical rank, and its share."""
    excess = {}
    for name in PARTS:
        values = facts.on_critical_rank(name)
        excess[name] = max(float(values[stalled].mean() - np.median(values[~stalled])), 0.0)
    part = max(excess, key=excess.__getitem__)
    return part, excess[part] / max(sum(excess.values()), 1.0)
