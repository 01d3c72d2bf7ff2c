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
from .cores import MOST_OF_IT
from .next_loader import next_loader
from .order import ONLY_WHEN, faults_first, in_order
from .straggler import next_slow_ranks

#: Causes that say when or where time is lost, but not what takes it: a finding that does is better.
VAGUE_CAUSES: Final = ONLY_WHEN | {"host-code", "slow-loader", "starved-of-cores"}
#: A vague finding that keeps less than this share of its gain when another one is gone is explained by that one.
KEEPS_RATIO: Final = 0.5
#: A finding that explains a vague one has at least this share of its gain.
EXPLAINS_RATIO: Final = 0.6
#: A precise finding comes before a vague one of its class that gains hardly more than this much of it.
NEARLY: Final = 0.9
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
    knows_loader = any(finding.class_ == "data" for finding in left)
    while left and len(steps) < MAX_STEPS:
        tried = [(facts.outcome(change & _change_of(finding)), finding) for finding in left]
        best, chosen = _best(tried, saved) if steps else (left[0].outcome, left[0])
        if best is None:
            break
        more = best.mean_saved_ns - saved
        if more < WORTH_RATIO * (facts.mean_step_ns - saved):
            break
        steps.append(
            PlanStep(finding=chosen, step_ns=facts.mean_step_ns - best.mean_saved_ns, gain=more / facts.mean_step_ns)
        )
        saved, change = best.mean_saved_ns, change & _change_of(chosen)
        left = [finding for finding in left if finding is not chosen and not _frees_cores(chosen, finding)]
        latent = None if knows_loader else next_loader(facts, change, saved)
        if latent is not None:
            left.append(latent)
            knows_loader = True
        known = [*(step.finding for step in steps), *left]
        named = {rank for finding in known if finding.class_ == "straggler" for rank in finding.ranks}
        hidden = next_slow_ranks(facts, change, saved, named)
        if hidden is not None:
            left.append(hidden)
    return kept, tuple(steps)


def _best(tried: Sequence[tuple[Outcome, Finding]], saved_ns: float) -> tuple[Outcome, Finding]:
    """What saves most beyond `saved_ns`; one that says what takes the time before a vague one that saves hardly more."""
    most, chosen = max(tried, key=lambda pair: pair[0].mean_saved_ns)
    if chosen.cause not in VAGUE_CAUSES:
        return most, chosen
    enough_ns = saved_ns + NEARLY * (most.mean_saved_ns - saved_ns)
    precise = [
        (outcome, one)
        for outcome, one in tried
        if one.class_ == chosen.class_ and one.cause not in VAGUE_CAUSES and outcome.mean_saved_ns >= enough_ns
    ]
    return max(precise, key=lambda pair: pair[0].mean_saved_ns, default=(most, chosen))


def _once(ordered: Sequence[Finding]) -> list[Finding]:
    """The findings without those that say what one before them does: two rules may look at the same from two sides."""
    first = {(one.class_, one.cause, one.ranks): one for one in reversed(ordered)}
    return [one for one in ordered if first[one.class_, one.cause, one.ranks] is one]


def _frees_cores(loader: Finding, finding: Finding) -> bool:
    """Whether a quicker loader gives the cores back that another finding misses."""
    return finding.cause == "starved-of-cores" and loader.evidence.get("cores_share", 0.0) >= MOST_OF_IT


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
