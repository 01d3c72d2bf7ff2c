"""What of two runs can be compared, and what a reader has to know about the rest."""

from typing import Final

import numpy as np

from ..analysis import FEW_STEPS, Analysis

#: Steps that take in more or less by this share do different work.
_SAME_INPUT_RATIO: Final = 0.02


def do_the_same(before: Analysis, after: Analysis) -> bool:
    """Whether the steps of both runs are steps of the same job: of as many ranks."""
    return before.trace.meta.size == after.trace.meta.size


def show_the_same(before: Analysis, after: Analysis) -> bool:
    """Whether both traces show the same parts of a step."""
    kinds = [
        (analysis.facts.breakdown.on_device, analysis.facts.breakdown.knows_compute) for analysis in (before, after)
    ]
    return kinds[0] == kinds[1]


def find_limits(before: Analysis, after: Analysis) -> tuple[str, ...]:
    """Sentences about what makes the runs differ beside what is looked for."""
    notes = []
    one, two = before.trace.meta, after.trace.meta
    if not do_the_same(before, after):
        notes.append(f"{one.size} ranks before and {two.size} now: a step is not the same work")
    elif one.ranks != two.ranks:
        notes.append(
            f"ranks {_listed(one.ranks)} were recorded before and {_listed(two.ranks)} now: the parts are theirs only"
        )
    if not show_the_same(before, after):
        notes.append(
            f"a {one.format} timeline before and a {two.format} timeline now do not show the same parts of a step, "
            "which are therefore not compared"
        )
    elif one.format != two.format:
        notes.append(f"a {one.format} timeline before and a {two.format} timeline now: parts may be cut differently")
    if before.facts.steps.inferred != after.facts.steps.inferred:
        which = "before" if before.facts.steps.inferred else "now"
        notes.append(f"steps are marked in one trace and inferred from tensors in the other ({which})")
    for analysis, when in ((before, "before"), (after, "now")):
        notes += _of_one(analysis, when)
    input_ratio = _input(after) / _input(before) if _input(before) and _input(after) else 1.0
    if abs(input_ratio - 1) > _SAME_INPUT_RATIO:
        notes.append(f"a step takes in {input_ratio:.2f} times as much input as before")
    return tuple(notes)


def _of_one(analysis: Analysis, when: str) -> list[str]:
    """What makes one of the runs a poor witness."""
    meta, notes = analysis.trace.meta, []
    if analysis.condition.has_failed:
        notes.append(f"the run {when} did not finish ({analysis.condition.ending})")
    if 0 < len(meta.ranks) < meta.size and analysis.facts.breakdown.knows_compute:
        notes.append(f"the trace {when} has {len(meta.ranks)} of {meta.size} ranks")
    if analysis.facts.steps.count < FEW_STEPS:
        count = analysis.facts.steps.count
        notes.append(f"the run {when} has {count} step{'s' * (count != 1)} to compare: too few to be sure of anything")
    return notes


def _input(analysis: Analysis) -> float:
    elements = analysis.facts.cpu.input_elements
    return float(elements.mean()) if elements.size and np.any(elements) else 0.0


def _listed(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")  # noqa: PLR2004
