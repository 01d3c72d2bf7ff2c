"""What only shows over the whole run: all ranks become slower, stall now and then, or are slow in a stretch of steps."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from ...timeline.vocabulary import Category
from ..facts import Facts, Outcome
from ..model.breakdown import EXPOSED, IDLE, PARTS
from ..model.pattern import Pattern, find_pattern
from ..model.peers import find_lapses
from ..model.steps import WARM_UP_SHARE
from ..model.words import milliseconds
from ..predict.change import Change, removed
from .base import WORTH_RATIO, Finding
from .transport import within_time_slice

#: Fewer steps than this show neither trend nor rhythm.
MIN_STEPS: Final = 12
#: A lapse is one part's if that part has this much of the excess.
ONE_PART: Final = 0.5

_DATA: Final = str(Category.DATA)
_COMMUNICATION: Final = ("collective", "negotiate", "queue", "fusion")


class Lapses:
    """Steps in which all ranks together are slower than usual: stalls, a stretch, more and more."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.replay is None or facts.steps.count < MIN_STEPS:
            return []
        # What all ranks have in common: waiting for one of them is that one's own.
        shared = np.sum([facts.part(part).min(axis=0) for part in PARTS], axis=0)
        excess = _after_warm_up(find_lapses(shared, facts.mean_step_ns))
        if not excess.any():
            return []
        outcome = _without(facts, excess > 0)
        if outcome.gain < WORTH_RATIO / 2 or _is_chance(facts, excess):
            return []
        return [_describe(facts, excess, outcome)]


def _is_chance(facts: Facts, excess: np.ndarray) -> bool:
    """Whether it is no more than what processes that share cores do to each other's collectives."""
    return within_time_slice(facts, excess) and _part_of(facts, excess > 0)[0] in _COMMUNICATION


def _after_warm_up(excess: np.ndarray) -> np.ndarray:
    """Without what the first few steps take longer: caches, allocators and clocks of a run that has just begun.

    Of a short run nobody can tell whether its beginning is slow, or its end quick by chance.
    """
    usual = np.flatnonzero(excess == 0)
    first = int(usual[0]) if len(usual) else 0
    is_warm_up = first < max(WARM_UP_SHARE * len(excess), MIN_STEPS)
    return np.where(np.arange(len(excess)) < first, 0.0, excess) if is_warm_up else excess


def _describe(facts: Facts, excess: np.ndarray, outcome: Outcome) -> Finding:
    """Name the steps and the part."""
    hit = excess > 0
    pattern = find_pattern(excess, facts.steps.numbers)
    part, share, by_part = _part_of(facts, hit)
    amount = float(excess[hit].mean())
    cause = {
        "periodic": "periodic-stalls",
        "growing": "slowing-down",
        "window": "slow-stretch",
        "always": "slow-stretch",  # in all steps but a few: the quick ones are the stretch that shows it
    }.get(pattern.kind, "outlier-steps")
    evidence: dict[str, Any] = {
        "mean_excess_ns": round(amount),
        "stalls": int(hit.sum()),
        "part": part,
        "share_of_part": round(share, 2),
        "growth_by_part_ns": by_part,
        "pattern": pattern.kind,
        **pattern.evidence,
    }
    class_ = "data" if part == _DATA else "communication" if part in _COMMUNICATION else "compute"
    return Finding(
        class_=class_,
        cause=cause,
        ranks=facts.ranks,
        predicted_gain=outcome.gain,
        gain_interval=outcome.interval,
        outcome=outcome,
        confidence=0.6 if share > ONE_PART else 0.4,
        evidence=evidence,
        remedy=_remedy(pattern),
        sentence=_sentence(facts, pattern, part, amount, excess),
    )


def _remedy(pattern: Pattern) -> str:
    if pattern.kind == "growing":
        return (
            "Look for what piles up: a list of losses that keeps graphs alive, growing inputs, a cache or a log file, "
            "memory that is "
            "swapped, a device that becomes hot (nvidia-smi -q -d PERFORMANCE)."
        )
    return (
        f"Look at what happens {_words(pattern)}: evaluation, logging, checkpoints, a new shard of data, garbage collection, "
        "other jobs on the host."
    )


def _sentence(facts: Facts, pattern: Pattern, part: str, amount: float, excess: np.ndarray) -> str:
    if pattern.kind == "growing":
        third = max(len(excess) // 3, 1)
        steps = facts.steps.job_ns
        return (
            f"Steps become slower: {milliseconds(float(steps[:third].mean()))} in the first third of the run, "
            f"{milliseconds(float(steps[-third:].mean()))} in the last (mean); {part} grows most."
        )
    return f"The training is {milliseconds(amount)} slower {_words(pattern)} on all ranks, most of it in {part}."


def _words(pattern: Pattern) -> str:
    return "in all but a few steps" if pattern.kind == "always" else pattern.words


def _part_of(facts: Facts, hit: np.ndarray) -> tuple[str, float, dict[str, int]]:
    """The part that has most of what these steps take longer on all ranks, its share, and what each has of it (ns)."""
    excess = {}
    for name in PARTS:
        values = facts.part(name).min(axis=0)
        usual = float(np.quantile(values[~hit] if (~hit).any() else values, 0.3))
        excess[name] = max(float(values[hit].mean()) - usual, 0.0)
    part = max(excess, key=excess.__getitem__)
    return part, excess[part] / max(sum(excess.values()), 1.0), {name: round(ns) for name, ns in excess.items() if ns}


def _without(facts: Facts, hit: np.ndarray) -> Outcome:
    """These steps as the usual ones: what all ranks have in common, and every operation, no longer than usual."""
    assert facts.graph is not None
    graph = facts.graph
    work: dict[str, np.ndarray] = {}
    for part in (name for name in PARTS if name not in EXPOSED or name == IDLE):
        values = facts.part(part).astype(float)
        shared = values.min(axis=0)
        usual = float(np.quantile(shared[~hit] if (~hit).any() else shared, 0.3))
        less = np.where(hit, np.maximum(shared - usual, 0.0), 0.0)
        work[part] = removed(values, less)
    operations = graph.operations
    step = np.clip(np.searchsorted(graph.steps.end_ns.max(axis=0), operations.end_ns), 0, facts.steps.count - 1)
    took = pd.DataFrame({"nbytes": operations.nbytes, "took": operations.duration_ns.astype(float)})
    usual_ns = took.groupby("nbytes")["took"].transform("median").to_numpy()
    own = took["took"].to_numpy()
    quicker = np.where(hit[step], removed(own, own - usual_ns), 1.0)
    loading = np.where(hit, work[_DATA], 1.0)
    return facts.outcome(Change(work=work, latency=quicker, transfer=quicker, loading=loading))
