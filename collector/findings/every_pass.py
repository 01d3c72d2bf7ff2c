"""Gradients that are reduced after each of several backward passes, though the optimizer steps once."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...timeline.vocabulary import BACKWARD, Category, LaneKind
from ..facts import Facts
from ..model.arrays import Integers
from ..model.words import milliseconds
from ..predict.change import Change
from .base import WORTH_RATIO, Finding, promise
from .callers import called_by_user

_KINDS: Final = ("allreduce", "reducescatter")
#: Passes of one model reduce the same gradients: their bytes differ by no more than this share.
ALIKE: Final = 0.02
#: In so many of the steps every pass reduces as much as the last one.
NEARLY_ALL: Final = 0.8

Rows = Integers


class ReducedInEveryPass:
    """Gradients are accumulated over several passes, and reduced in each."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.replay is None or facts.graph is None or facts.is_of_parts:
            return []
        found = _early_passes(facts)
        if found is None:
            return []
        early, passes = found
        # What is copied out of the buckets, and what takes cores from backward, goes with them.
        once = 1 / passes
        outcome = facts.outcome(Change(gone=early, contention=once, work={str(Category.FUSION): once}))
        if outcome.gain < WORTH_RATIO / 2:
            return []
        is_torch = facts.trace.meta.runtime == "torch"
        remedy = (
            "with model.no_sync(): around forward and backward of all passes but the last "
            "(fully_shard: model.set_requires_gradient_sync(False))."
            if is_torch
            else f"DistributedOptimizer(backward_passes_per_step={passes})."
        )
        return [
            promise(
                outcome,
                class_="communication",
                cause="reduced-in-every-pass",
                ranks=facts.ranks,
                confidence=0.85,
                evidence={
                    "passes_per_step": passes,
                    "collectives_per_step": round(float(len(early)) / facts.steps.count, 1),
                    "not_needed_per_step": round(float(early.sum()) / facts.steps.count, 1),
                },
                remedy=f"Reduce the accumulated gradients once a step: {remedy}",
                sentence=(
                    f"A step has {passes} backward passes, and each of them reduces all gradients, though the optimizer needs "
                    f"their sum only: {milliseconds(outcome.mean_saved_ns)} of each {milliseconds(facts.mean_step_ns)} step."
                ),
            )
        ]


def _early_passes(facts: Facts) -> tuple[np.ndarray, int] | None:
    """Operations of all passes but a step's last, bool[operation], and how many passes a step has; None if that is not so."""
    assert facts.graph is not None
    operations = facts.graph.operations
    passes = starts_of(facts, 0, "name", BACKWARD)
    starts, ends = facts.steps.start_ns[0], facts.steps.end_ns[0]
    before = np.searchsorted(passes, starts, side="left")
    per_step = np.searchsorted(passes, ends, side="left") - before
    count = int(np.median(per_step)) if len(per_step) else 0
    if count < 2 or not len(operations) or _is_updated_between(facts, passes):  # noqa: PLR2004  nothing is accumulated
        return None
    asked = operations.asked_ns(0)
    step = np.searchsorted(starts, asked, side="right") - 1
    inside = (asked >= 0) & (step >= 0) & (asked < ends[np.maximum(step, 0)])
    column = np.maximum(step, 0)
    number = np.searchsorted(passes, asked, side="right") - 1 - before[column]
    of_gradients = (
        inside & (number >= 0) & ~called_by_user(facts) & np.isin(np.array(operations.kind, dtype=object), _KINDS)
    )
    regular = per_step == count
    taken = of_gradients & regular[column]
    nbytes = np.zeros((facts.steps.count, count))
    np.add.at(nbytes, (column[taken], np.minimum(number[taken], count - 1)), np.maximum(operations.nbytes[taken], 0))
    last = nbytes[:, -1:]
    same = regular & (last[:, 0] > 0) & (np.abs(nbytes - last) <= ALIKE * last).all(axis=1)
    if same.mean() < NEARLY_ALL:
        return None
    return of_gradients & (number < per_step[column] - 1), count


def _is_updated_between(facts: Facts, passes: Rows) -> bool:
    """Whether an optimizer works after most passes of rank 0: one that evaluates the model again (L-BFGS), or several."""
    updates = np.searchsorted(starts_of(facts, 0, "category", str(Category.OPTIMIZER)), passes)
    return bool((np.diff(updates) > 0).mean() >= NEARLY_ALL) if len(passes) > 1 else False


def starts_of(facts: Facts, row: int, column: str, value: str) -> Rows:
    """When spans of the training thread of a rank begin that have a value in a column, in order (ns)."""
    spans = facts.trace.spans
    mine = (
        (spans[column] == value) & (spans["rank"] == facts.ranks[row]) & (spans["lane_kind"] == str(LaneKind.COMPUTE))
    )
    starts: Rows = np.sort(spans.loc[mine, "start_ns"].to_numpy())
    return starts
