"""What a finding is, and how sure one can be of a gain."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ..model.facts import Facts

#: A finding that predicts no more than this is not worth a change.
WORTH_RATIO: Final = 0.05

#: Causes that say when time is lost, but not what takes it: a finding that does is better.
VAGUE_CAUSES: Final = frozenset({"periodic-stalls", "outlier-steps", "slowing-down", "host-code", "slow-loader"})
#: Of the gain of a vague finding, so much explains it.
EXPLAINS_RATIO: Final = 0.6

CLASSES: Final = ("data", "communication", "compute", "straggler", "healthy", "unknown")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One diagnosed cause.

    `predicted_gain` is the share of the step time that the remedy would take away (0.31: 100 ms become 69 ms).
    """

    class_: str
    cause: str
    ranks: tuple[int, ...]
    predicted_gain: float
    gain_interval: tuple[float, float]
    confidence: float
    evidence: dict[str, Any] = field(default_factory=dict)
    remedy: str
    sentence: str


def without_explained(findings: Sequence[Finding]) -> list[Finding]:
    """`findings` but the vague ones whose gain another one of their class mostly has."""
    precise = [finding for finding in findings if finding.cause not in VAGUE_CAUSES]
    return [
        finding
        for finding in findings
        if finding.cause not in VAGUE_CAUSES
        or not any(
            other.class_ == finding.class_ and other.predicted_gain > EXPLAINS_RATIO * finding.predicted_gain
            for other in precise
        )
    ]


class Rule(Protocol):
    """Looks for one kind of cause, in a run that has steps."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """The findings, none if there is no such cause."""


def accumulation(facts: Facts) -> str:
    """How gradients of several passes are gathered before they are reduced, in the words of the runtime that was recorded."""
    return "no_sync()" if facts.trace.meta.runtime == "torch" else "backward_passes_per_step"
