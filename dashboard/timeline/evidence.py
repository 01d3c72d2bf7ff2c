"""Where on the timeline a finding can be seen: the step, the ranks, and what of it to look at."""

from typing import Any, Final

import numpy as np

from ...collector.analysis import Analysis
from ...collector.findings import Finding
from ...timeline.vocabulary import Category

#: What part of a step a cause is about, by words in its slug; the first that fits.
_PARTS: Final = (
    ("loader", Category.DATA),
    ("worker", Category.DATA),
    ("data", Category.DATA),
    ("h2d", Category.H2D),
    ("copy", Category.H2D),
    ("forward", Category.FORWARD),
    ("backward", Category.BACKWARD),
    ("optimizer", Category.OPTIMIZER),
    ("checkpoint", Category.CHECKPOINT),
    ("negotiat", Category.NEGOTIATE),
    ("cycle", Category.NEGOTIATE),
    ("latency", Category.COLLECTIVE),
    ("fusion", Category.COLLECTIVE),
    ("garbage", Category.OTHER),
    ("loop", Category.OTHER),
)
#: Of a class, where the slug tells nothing.
_OF_CLASS: Final = {
    "data": Category.DATA,
    "communication": Category.COLLECTIVE,
    "compute": Category.FORWARD,
}
#: Ranks that an address names.
MAX_RANKS: Final = 16


def place_of(analysis: Analysis, finding: Finding) -> dict[str, Any]:
    """The query of the timeline page that shows a finding's evidence.

    Returns:
        `step`: the one that shows it best; `ranks`: whose spans to look at; `show`: their category; `q`: the tensor.
        What is not known is left out.
    """
    query: dict[str, Any] = {}
    step = _step_of(analysis, finding)
    if step is not None:
        query["step"] = step
    if finding.ranks and len(finding.ranks) <= MAX_RANKS:
        query["ranks"] = ",".join(map(str, finding.ranks))
    part = _part_of(finding)
    if part is not None and part in {str(name) for name in analysis.trace.spans["category"].cat.categories}:
        query["show"] = part
    tensor = finding.evidence.get("tensor")
    if isinstance(tensor, str) and tensor:
        query["q"] = tensor[:200]
    return query


def _part_of(finding: Finding) -> str | None:
    by_part = finding.evidence.get("excess_by_category_ns")
    if isinstance(by_part, dict) and by_part:
        worst = str(max(by_part, key=lambda part: by_part[part]))
        if worst in set(map(str, Category)):
            return worst
    slug = finding.cause
    return next((str(part) for word, part in _PARTS if word in slug), None) or (
        str(_OF_CLASS[finding.class_]) if finding.class_ in _OF_CLASS else None
    )


def _step_of(analysis: Analysis, finding: Finding) -> int | None:
    """Of the steps that the finding names (of all, if it is always so) one in which its part takes as long as it usually does."""
    steps, breakdown = analysis.facts.steps, analysis.facts.breakdown
    if not steps.count:
        return None
    known = set(steps.numbers.tolist())
    named = finding.evidence.get("steps")
    only = {int(number) for number in named if isinstance(number, int)} if isinstance(named, list | tuple) else set()
    if only & known and finding.evidence.get("pattern", "") != "always":
        candidates = np.isin(steps.numbers, sorted(only))
    else:
        candidates = np.ones(steps.count, dtype=bool)
    part = _part_of(finding)
    rows = [row for row, rank in enumerate(breakdown.ranks) if rank in finding.ranks] or list(
        range(len(breakdown.ranks))
    )
    if part in breakdown.parts_ns and finding.predicted_gain:
        spent = breakdown.parts_ns[part][rows].max(axis=0).astype(float)
    else:
        spent = steps.job_ns.astype(float)
    usual = float(np.median(spent[candidates]))
    return int(steps.numbers[int(np.argmin(np.where(candidates, np.abs(spent - usual), np.inf)))])
