"""What to change first, and what is left to gain after that: a plan, not a list.

Gains do not add up: two findings may describe the same time, and a second bottleneck may show only when the first is gone.
So each next change is evaluated on the run as it would be after those before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..facts import Facts, Outcome
from ..predict.change import Change, all_of
from .base import WORTH_RATIO, Finding
from .order import ONLY_WHEN, faults_first, in_order

#: Causes that say when or where time is lost, but not what takes it: a finding that does is better.
VAGUE_CAUSES: Final = ONLY_WHEN | {"host-code", "slow-loader", "starved-of-cores"}
#: A vague finding that keeps less than this share of its gain when another one is gone is explained by that one.
KEEPS_RATIO: Final = 0.5
#: A finding that explains a vague one has at least this share of its gain.
EXPLAINS_RATIO: Final = 0.6
#: The plan is no longer than that.
MAX_STEPS: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanStep:
    """One change, after those before it."""

    finding: Finding
    step_ns: float
    """Mean step when it is made."""
    gain: float
    """Share of the original mean step that goes with this change alone, after those before."""


def make_plan(facts: Facts, findings: Sequence[Finding]) -> tuple[list[Finding], tuple[PlanStep, ...]]:
    """Order the findings, leave out vague ones that another one explains, and plan.

    Returns:
        The findings, in order (order.py); the plan, empty where nothing is worth a change.
    """
    ordered = _once(in_order(findings))
    kept = [finding for finding in ordered if not _is_explained(facts, finding, ordered)]
    if facts.replay is None:
        return kept, ()
    kept = faults_first(facts, kept)
    steps: list[PlanStep] = []
    change, saved = Change(), 0.0
    left = [finding for finding in kept if finding.outcome is not None and finding.predicted_gain > 0]
    while left and len(steps) < MAX_STEPS:
        tried = [(facts.outcome(change & _change_of(finding)), finding) for finding in left]
        best, chosen = max(tried, key=lambda pair: pair[0].mean_saved_ns) if steps else (left[0].outcome, left[0])
        if best is None:
            break
        more = best.mean_saved_ns - saved
        if more < WORTH_RATIO * (facts.mean_step_ns - saved):
            break
        steps.append(
            PlanStep(finding=chosen, step_ns=facts.mean_step_ns - best.mean_saved_ns, gain=more / facts.mean_step_ns)
        )
        saved, change = best.mean_saved_ns, change & _change_of(chosen)
        left.remove(chosen)
    return kept, tuple(steps)


def _once(ordered: Sequence[Finding]) -> list[Finding]:
    """The findings without those that say what one before them does: two rules may look at the same from two sides."""
    first = {(one.class_, one.cause, one.ranks): one for one in reversed(ordered)}
    return [one for one in ordered if first[one.class_, one.cause, one.ranks] is one]


def _change_of(finding: Finding) -> Change:
    return Change() if finding.outcome is None else finding.outcome.change


def _is_explained(facts: Facts, finding: Finding, others: Sequence[Finding]) -> bool:
    """Whether a vague finding's gain is mostly that of a precise one, or of several together."""
    if finding.cause not in VAGUE_CAUSES or finding.outcome is None or facts.replay is None:
        return False
    precise = [other for other in others if other is not finding and _says_more(other, finding)]
    large = [other for other in precise if other.predicted_gain >= EXPLAINS_RATIO * finding.predicted_gain]
    if any(_leaves_little(facts, other.outcome, finding.outcome) for other in large if other.outcome is not None):
        return True
    if len(precise) < 2:  # noqa: PLR2004  nothing to put together
        return False
    together = facts.outcome(all_of([_change_of(other) for other in precise]))
    is_enough = together.gain >= EXPLAINS_RATIO * finding.predicted_gain
    return is_enough and _leaves_little(facts, together, finding.outcome)


def _says_more(other: Finding, finding: Finding) -> bool:
    """Whether `other` says what takes the time that the vague `finding` tells of."""
    if other.outcome is None or other.predicted_gain < WORTH_RATIO / 2:
        return False
    says_what = finding.cause in ONLY_WHEN and finding.class_ == other.class_ == "data"
    return other.cause not in VAGUE_CAUSES or (says_what and other.cause not in ONLY_WHEN)


def _leaves_little(facts: Facts, other: Outcome, vague: Outcome) -> bool:
    """Whether the vague finding's change gains little once the other one is made."""
    both = facts.outcome(other.change & vague.change).mean_saved_ns
    return both - other.mean_saved_ns < KEEPS_RATIO * vague.mean_saved_ns
