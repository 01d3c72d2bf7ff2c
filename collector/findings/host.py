"""Time that every rank spends in the training loop's own code: batches that are made there, and everything else."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...timeline.vocabulary import LOSS_COUNTER, Category
from ..facts import Facts, Outcome
from ..model.arrays import Mask
from ..model.common import common_to_all
from ..model.intervals import normalise, subtract, union
from ..model.pattern import Pattern, find_pattern
from ..model.words import milliseconds
from .base import WORTH_RATIO, Finding, promise
from .blocked import long_within
from .framework_words import COMPILED, Advice, advise

#: The loss, zero_grad and the loop itself are host code, too; this much, as a share of the rest of the step, is ordinary.
ORDINARY_RATIO: Final = 0.1
MIN_ORDINARY_RATIO: Final = 0.02
_OTHER: Final = str(Category.OTHER)
#: Libraries that the call of a compiled step is inside of.
_FRAMEWORKS: Final = frozenset({"tensorflow", "keras", "tf_keras", "jax", "jaxlib"})
_MODEL: Final = tuple(map(str, (Category.FORWARD, Category.BACKWARD, Category.OPTIMIZER)))
#: So little of the loop's code is not told from nothing.
NEARLY: Final = 0.25
#: A line that calls a compiled step has this much of the model's parts for what it has of none.
CALLS_STEP: Final = 0.5
#: Of it in one piece, where a profile shows every operator.
ORDINARY_HOLE_RATIO: Final = 0.03


class HostCode:
    """Code of the training loop outside everything that is recorded."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """What all ranks have (one rank alone is a straggler), at most one finding for batches and one for the rest."""
        if facts.replay is None or facts.breakdown.on_device:
            return []
        own = 1 - _step_share(facts)
        loss_ns = _loss_ns(facts)
        host_ns = np.maximum(own * facts.part(_OTHER).astype(float) - loss_ns, 0.0)
        common_ns = np.maximum(own * _common(facts) - loss_ns.min(axis=0), 0.0)
        step_ns = facts.mean_step_ns
        beyond_ns = np.maximum(_beyond_ordinary(common_ns, step_ns), common_to_all(_long_holes(facts)))
        of_input = min(input_share(facts) / max(own, 1e-9), 1.0)
        found = []
        for of_them, is_input in ((of_input, True), (1 - of_input, False)):
            outcome = facts.outcome(facts.without(_OTHER, of_them * beyond_ns))
            if not of_them or outcome.gain < WORTH_RATIO / 2:
                continue
            beyond_by_rank = of_them * np.maximum(_beyond_ordinary(host_ns, step_ns), _long_holes(facts))
            pattern = find_pattern(beyond_by_rank.max(axis=0), facts.steps.numbers)
            spent_ns = of_them * float(host_ns.mean())
            found.append(
                _of_input(facts, outcome, pattern, spent_ns)
                if is_input
                else _of_the_rest(facts, outcome, pattern, spent_ns)
            )
        return found


def input_share(facts: Facts, rows: Sequence[int] | None = None, steps: Mask | None = None) -> float:
    """How much of the loop's own code is batches that it makes itself, 0 to 1; nearly all and nearly nothing are all and nothing.

    Args:
        rows: ranks, by row; None for all.
        steps: bool[step]; None for all.
    """
    if facts.code is None:
        return 0.0
    share = float(facts.code.input_ratio(_OTHER, range(len(facts.ranks)) if rows is None else rows, steps).min())
    return float(np.round(share) if abs(share - np.round(share)) < NEARLY else share)


def _step_share(facts: Facts) -> float:
    """How much of what looks like the loop's own code is the call of a compiled step, 0 to 1.

    What runs inside of it before its forward pass and behind its update has no marks of its own; nothing has where a step
    has no gradients, as in an evolution strategy.
    """
    if facts.trace.meta.framework not in COMPILED:
        return 0.0
    has_parts = any(facts.part(part).any() for part in _MODEL)
    if facts.code is None:
        return 0.0 if has_parts else 1.0
    rows = range(len(facts.ranks))
    beside = _MODEL if has_parts else (_OTHER,)
    # fit() calls nothing else; a line of a loop may call a compiled step, or operations one by one.
    as_long = 0.0 if facts.trace.meta.framework == "keras" else CALLS_STEP
    return float(facts.code.inside_ratio(_OTHER, rows, _FRAMEWORKS, beside, as_long).min())


def _loss_ns(facts: Facts) -> np.ndarray:
    """What the script's own loss, between the model's forward and backward, takes of the loop: about float[rank, step].

    Operators take about as long forward as backward, or less, and of backward it is known how much is the loss's.
    """
    backward = facts.part(str(Category.BACKWARD)).astype(float)
    shares = (
        facts.trace.counters[facts.trace.counters["name"] == LOSS_COUNTER]
        .groupby("rank", observed=True)["value"]
        .median()
    )
    by_rank = np.array([float(shares.get(rank, 0.0)) / 100 for rank in facts.ranks])
    loss_ns: np.ndarray = by_rank[:, None] * backward
    return loss_ns


def _of_input(facts: Facts, outcome: Outcome, pattern: Pattern, spent_ns: float) -> Finding:
    return promise(
        outcome,
        class_="data",
        cause="batches-made-in-loop",
        ranks=facts.ranks,
        confidence=0.7,
        evidence={"part": _OTHER, "mean_ns": round(spent_ns), "pattern": pattern.kind, **pattern.evidence},
        remedy=advise(facts, Advice.BATCHES_AHEAD),
        sentence=(
            f"The training loop of every rank makes its batches itself, and the model waits: {milliseconds(spent_ns)} of each "
            f"{milliseconds(facts.mean_step_ns)} step."
        ),
    )


def _of_the_rest(facts: Facts, outcome: Outcome, pattern: Pattern, spent_ns: float) -> Finding:
    return promise(
        outcome,
        class_="compute",
        cause="host-code",
        ranks=facts.ranks,
        confidence=0.6,
        evidence={"mean_ns": round(spent_ns), "pattern": pattern.kind, **pattern.evidence},
        remedy=advise(facts, Advice.LESS_HOST_CODE),
        sentence=(
            f"Every rank spends {milliseconds(spent_ns)} of each {milliseconds(facts.mean_step_ns)} step in code "
            "that is neither data loading, nor forward, backward or optimizer."
        ),
    )


def _common(facts: Facts) -> np.ndarray:
    """What all ranks have, with what they wait for cores in it: that would go as well.  float[rank, step]."""
    took, worked = facts.part(_OTHER).astype(float), facts.worked(_OTHER)
    share = np.divide(common_to_all(worked), worked, out=np.zeros(took.shape), where=worked > 0)
    common: np.ndarray = took * share
    return common


def _beyond_ordinary(host_ns: np.ndarray, step_ns: float) -> np.ndarray:
    """What is more than a loop needs for itself, the less the clearer it is more: float[rank, step]."""
    rest_ns = max(step_ns - float(host_ns.mean()), 0.0)
    share = float(host_ns.mean()) / max(rest_ns, 1.0)
    ordinary = float(np.clip(2 * ORDINARY_RATIO - share, MIN_ORDINARY_RATIO, ORDINARY_RATIO))
    beyond: np.ndarray = np.maximum(host_ns - ordinary * rest_ns, 0.0)
    return beyond


def _long_holes(facts: Facts) -> np.ndarray:
    """Of a profile of operators: how long nothing runs in one piece, beyond what a loop needs: float[rank, step].

    Python between operators is many short holes; one long hole is code of the loop, or a wait.
    """
    breakdown = facts.breakdown
    if not any(len(still) for still in breakdown.still):
        return np.zeros(facts.steps.start_ns.shape)
    holes = [
        subtract(normalise(facts.steps.start_ns[row], facts.steps.end_ns[row]), union(*moments.values()))
        for row, moments in enumerate(breakdown.moments)
    ]
    long = long_within(holes, facts)
    ordinary_ns = ORDINARY_HOLE_RATIO * max(facts.mean_step_ns - float(long.mean()), 0.0)
    beyond: np.ndarray = np.maximum(long - ordinary_ns, 0.0)
    return beyond


class Checkpoints:
    """The training stands still while checkpoints are written."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """One finding if they cost something."""
        writing_ns = facts.part(str(Category.CHECKPOINT))
        if facts.replay is None or not writing_ns.any():
            return []
        outcome = facts.outcome(facts.without(str(Category.CHECKPOINT), writing_ns))
        ranks = tuple(rank for rank, row in zip(facts.ranks, writing_ns, strict=True) if row.any())
        steps = int((writing_ns.max(axis=0) > 0).sum())
        everywhere = len(ranks) == len(facts.ranks)
        cause = "checkpoint-stall" if everywhere else "checkpoint-on-one-rank"
        if not everywhere and steps < facts.steps.count:
            cause = f"periodic-{cause}"
        return [
            promise(
                outcome,
                class_="compute" if everywhere else "straggler",
                cause=cause,
                ranks=ranks,
                confidence=0.9,
                evidence={"steps": steps, "mean_ns": round(float(writing_ns[writing_ns > 0].mean()))},
                remedy=advise(facts, Advice.SAVE_IN_BACKGROUND),
                sentence=(
                    f"{steps} of {facts.steps.count} steps wait for a checkpoint of "
                    f"{milliseconds(float(writing_ns[writing_ns > 0].mean()))}."
                ),
            )
        ]
