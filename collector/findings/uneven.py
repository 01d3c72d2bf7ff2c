"""Every rank is the slowest in turn, because batches differ in size."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...timeline.vocabulary import Category
from ..facts import Facts
from ..model.words import milliseconds
from ..predict.change import Change
from .base import WORTH_RATIO, Finding

#: Steps in which ranks differ by less say nothing.
MIN_STEPS: Final = 8
#: How closely the work has to follow the size of the input.
FOLLOWS: Final = 0.6
_MODEL: Final = tuple(map(str, (Category.FORWARD, Category.BACKWARD)))


class UnevenBatches:
    """The largest batch of a step decides how long it lasts, and the other ranks wait."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding, for all ranks."""
        elements = facts.cpu.input_elements.astype(float)
        if facts.replay is None or len(facts.ranks) < 2 or facts.steps.count < MIN_STEPS:  # noqa: PLR2004
            return []
        work = np.sum([facts.part(part) for part in _MODEL], axis=0).astype(float)
        # What differs between the ranks of a step; what differs between steps costs nobody a wait.
        more_input = (elements - elements.mean(axis=0)).ravel()
        more_work = (work - work.mean(axis=0)).ravel()
        if elements.min() <= 0 or more_input.std() < 0.02 * elements.mean() or more_work.std() == 0:
            return []
        correlation = float(np.corrcoef(more_input, more_work)[0, 1])
        # A rank whose batches are always the largest is a straggler of its own.
        largest = np.bincount(elements.argmax(axis=0), minlength=len(facts.ranks)).max() / facts.steps.count
        if correlation < FOLLOWS or largest > 0.9:  # noqa: PLR2004
            return []
        even = {}
        for part in _MODEL:
            values = facts.part(part).astype(float)
            even[part] = np.divide(values.mean(axis=0), values, out=np.ones(values.shape), where=values > 0)
        outcome = facts.outcome(Change(work=even))
        if outcome.gain < WORTH_RATIO / 2:
            return []
        spread = float((elements.max(axis=0) / elements.mean(axis=0)).mean())
        return [
            Finding(
                class_="straggler",
                cause="uneven-batches",
                ranks=facts.ranks,
                predicted_gain=outcome.gain,
                gain_interval=outcome.interval,
                outcome=outcome,
                confidence=min(correlation, 0.95),
                evidence={
                    "correlation_of_input_and_work": round(correlation, 3),
                    "largest_over_mean_input": round(spread, 3),
                },
                remedy=(
                    "Give all ranks batches of equal work: sort or bucket the samples by length and deal the buckets out, so "
                    "that the ranks have the same size in the same step; or pad to fixed sizes."
                ),
                sentence=(
                    f"Batches differ between ranks (the largest of a step is {spread:.1f} times the mean): the others wait "
                    f"for it, {milliseconds(outcome.mean_saved_ns)} of each {milliseconds(facts.mean_step_ns)} step."
                ),
            )
        ]
