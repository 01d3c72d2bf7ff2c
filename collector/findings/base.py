"""What a finding is, and how sure one can be of a gain."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ..facts import Facts

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


def shorten(name: str, most: int = 100) -> str:
    """A name for a sentence: the middle of a long one goes.

    >>> shorten("abcdefghij", 7)
    'abc…hij'
    """
    if len(name) <= most:
        return name
    half = (most - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def milliseconds(value_ns: float) -> str:
    """A duration for a sentence.

    >>> milliseconds(51_234_567)
    '51.2 ms'
    """
    value = value_ns / 1e6
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 1 else f"{value:.2f} ms"  # noqa: PLR2004


def name_ranks(ranks: Sequence[int], size: int) -> str:
    """Ranks as the subject of a sentence.

    >>> name_ranks([1], 4), name_ranks([0, 1], 2), name_ranks([0, 2], 4)
    ('Rank 1', 'Every rank', 'Ranks 0, 2')
    """
    if len(ranks) == size and size > 1:
        return "Every rank"
    if len(ranks) == 1:
        return f"Rank {ranks[0]}" if size > 1 else "The training loop"
    shown = ", ".join(map(str, ranks[:8]))
    return f"Ranks {shown}{', …' if len(ranks) > 8 else ''}"  # noqa: PLR2004


def accumulation(facts: Facts) -> str:
    """How gradients of several passes are gathered before they are reduced, in the words of the runtime that was recorded."""
    return "no_sync()" if facts.trace.meta.runtime == "torch" else "backward_passes_per_step"
