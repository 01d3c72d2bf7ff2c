"""What a finding is, and how sure one can be of a gain."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from ..facts import Facts

#: A finding that predicts no more than this is not worth a change.
WORTH_RATIO: Final = 0.05

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


class Rule(Protocol):
    """Looks for one kind of cause."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """The findings, none if there is no such cause."""


def gain_of(
    saved_ns: np.ndarray[tuple[int], np.dtype[np.float64]], step_ns: float
) -> tuple[float, tuple[float, float]]:
    """Mean gain and its 95 % interval, from the time saved in each step.

    The interval is the mean's (1.96 standard errors), which says how sure the mean is, not how steps vary.
    """
    if not len(saved_ns) or step_ns <= 0:
        return 0.0, (0.0, 0.0)
    mean = float(saved_ns.mean())
    error = 1.96 * float(saved_ns.std(ddof=1)) / len(saved_ns) ** 0.5 if len(saved_ns) > 1 else mean

    def ratio(value_ns: float) -> float:
        return min(max(value_ns / step_ns, 0.0), 1.0)

    return ratio(mean), (ratio(mean - error), ratio(mean + error))


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
