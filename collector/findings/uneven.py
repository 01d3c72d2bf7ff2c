"""Every rank is the slowest in turn, because batches differ in size."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...timeline.vocabulary import Category
from ..facts import Facts, Outcome
from ..model.arrays import Matrix
from ..model.words import milliseconds
from ..predict.change import Change
from .base import WORTH_RATIO, Finding, promise

#: Steps in which ranks differ by less say nothing.
MIN_STEPS: Final = 8
#: How closely the work has to follow the size of the input.
FOLLOWS: Final = 0.6
#: Attention grows with the square of the length.
MAX_EXPONENT: Final = 2.0
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
        outcome = of_even_batches(facts)
        if outcome.gain < WORTH_RATIO / 2:
            return []
        spread = float((elements.max(axis=0) / elements.mean(axis=0)).mean())
        return [
            promise(
                outcome,
                class_="straggler",
                cause="uneven-batches",
                ranks=facts.ranks,
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


def of_even_batches(facts: Facts) -> Outcome:
    """If the input of a step were divided evenly among the ranks: no less of it, but as much for each."""
    elements = facts.cpu.input_elements.astype(float)
    even = {part: with_even_batches(elements, facts.part(part).astype(float)) for part in _MODEL}
    return facts.outcome(Change(work=even))


def loading_like_others(facts: Facts, rows: Sequence[int]) -> Change:
    """Workers of the loaders of some ranks that make smaller batches, in the time that the others' take (median)."""
    factor = np.ones((len(facts.ranks), 1))
    loading = None if facts.graph is None else facts.graph.loading
    usual = [] if loading is None else [loading.busy_ns[loading.rank == row] for row in range(len(facts.ranks))]
    others = [float(np.median(took)) for row, took in enumerate(usual) if row not in rows and len(took)]
    for row in rows:
        if others and len(usual[row]) and (own := float(np.median(usual[row]))) > 0:
            factor[row] = min(float(np.median(others)) / own, 1.0)
    return Change(loading=np.broadcast_to(factor, facts.steps.start_ns.shape))


def with_even_batches(elements: Matrix, work_ns: Matrix) -> Matrix:
    """The factor of a part if all ranks of a step had the same amount of work to do by their input: float[rank, step].

    Work grows with a power of the input, whose exponent comes from the run (the least absolute deviations, which a few steps
    that are long for another reason do not move); what is not explained by the input stays as it is.
    """
    if work_ns.min() <= 0:
        return np.ones(work_ns.shape)
    size, took = np.log(elements), np.log(work_ns)
    more_input = (size - np.median(size, axis=0)).ravel()
    more_work = (took - np.median(took, axis=0)).ravel()
    differs = more_input != 0
    slopes, weights = more_work[differs] / more_input[differs], np.abs(more_input[differs])
    order = np.argsort(slopes)
    total = np.cumsum(weights[order])
    exponent = float(np.clip(slopes[order][np.searchsorted(total, total[-1] / 2)], 0.0, MAX_EXPONENT))
    by_input = elements**exponent
    factor: Matrix = by_input.mean(axis=0) / by_input
    return factor
