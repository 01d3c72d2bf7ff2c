"""Gradients that are reduced once more in the same step, after one backward pass: nothing has changed but what was averaged."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...timeline.vocabulary import BACKWARD
from ..facts import Facts
from ..model.arrays import Mask
from ..model.words import milliseconds
from ..predict.change import Change
from .base import WORTH_RATIO, Finding, promise
from .every_pass import NEARLY_ALL, starts_of
from .framework_words import COMPILED

_GRADIENT: Final = "gradient"


class ReducedAgain:
    """Each gradient is reduced more often than backward makes it."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding."""
        if facts.replay is None or facts.graph is None or facts.is_of_parts:
            return []
        # A call of a compiled function may train on several batches (steps_per_execution), which is one step here.
        if facts.trace.meta.framework in COMPILED:
            return []
        again = _again(facts)
        if again is None:
            return []
        outcome = facts.outcome(Change(gone=again))
        if outcome.gain < WORTH_RATIO / 2:
            return []
        nbytes = facts.graph.operations.nbytes
        share = float(nbytes[again].sum()) / facts.steps.count
        return [
            promise(
                outcome,
                class_="communication",
                cause="reduced-again",
                ranks=facts.ranks,
                confidence=0.9,
                evidence={
                    "collectives_again_per_step": round(float(again.sum()) / facts.steps.count, 1),
                    "bytes_again_per_step": round(share),
                    "pattern": "always",
                },
                remedy=(
                    "After optimizer.synchronize(), as for clipping, call step() inside of 'with optimizer.skip_synchronize():', "
                    "which does not reduce once more."
                ),
                sentence=(
                    "Each gradient is reduced more than once in a step, though backward makes it once: "
                    f"{milliseconds(outcome.mean_saved_ns)} of each {milliseconds(facts.mean_step_ns)} step."
                ),
            )
        ]


def _again(facts: Facts) -> Mask | None:
    """The operations that carry only gradients which were reduced in the same step before: bool[operation]; None if few do."""
    assert facts.graph is not None
    tensors = facts.trace.tensors
    mine = tensors[(tensors["rank"] == facts.ranks[0]) & (tensors["caller"].astype(str) == _GRADIENT)]
    begins, ends = facts.steps.start_ns[0], facts.steps.end_ns[0]
    step = np.searchsorted(begins, mine["start_ns"].to_numpy(), side="right") - 1
    inside = (step >= 0) & (mine["start_ns"].to_numpy() < ends[np.maximum(step, 0)])
    mine = mine[inside].assign(step=step[inside]).sort_values("start_ns", kind="stable")
    if mine.empty:
        return None
    mine["again"] = mine.groupby(["step", "name"], observed=True).cumcount() > 0
    by_step = mine.groupby("step")["again"].mean().reindex(range(facts.steps.count), fill_value=0.0).to_numpy()
    passes = starts_of(facts, 0, "name", BACKWARD)
    made_once = np.searchsorted(passes, ends) - np.searchsorted(passes, begins) == 1
    # Half of what is reduced, or more, in nearly every step.
    if float(((by_step >= NEARLY_ALL / 2) & made_once).mean()) < NEARLY_ALL:
        return None
    only = mine.groupby(["process_set", "seq"])["again"].all()
    operations = facts.graph.operations
    keys = zip(np.asarray(operations.process_set).tolist(), np.asarray(operations.seq).tolist(), strict=True)
    told = only.to_dict()
    found: Mask = np.array([bool(told.get(key, False)) for key in keys], bool)
    return found if found.any() else None
