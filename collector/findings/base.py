"""What a finding is, and how sure one can be of a gain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from ..facts import Facts, Outcome
from ..model.arrays import Floats

#: A finding that predicts no more than this is not worth a change.
WORTH_RATIO: Final = 0.05

#: Communication that is only much for what the run computes: fewer bytes, or fewer reductions, are another training, and no mend.
#: Below this share of the step nothing is wrong with it, unless there is a network between hosts, which may be slow.
WORTH_OF_MODEL: Final = 0.12
_MUCH_COMMUNICATION: Final = frozenset({"bandwidth-bound", "exposed-communication"})

#: What a change of the model, or of how gradients are reduced, counts beside what departs from the usual (order.py).
OF_MODEL: Final = 0.5
#: The same for another transport, which makes any communication quicker.
OF_TRANSPORT: Final = 0.25

#: Said in a remedy, and left out where the line is named.
SHOWS_LINE: Final = " (py-spy dump --pid of a rank shows the line)"

#: The same of a thread.
FIND_THREAD: Final = "find the thread (py-spy dump --pid of a rank) and "

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
    outcome: Outcome | None = field(default=None, repr=False, compare=False)
    """What the remedy would do, where a replay told it."""
    order_gain: float | None = None
    """What it counts beside other findings on communication (order.py); None for the gain."""

    def _repr_html_(self) -> str:
        """What a notebook shows: the sentence, the remedy and the gain."""
        from ..reports.html import finding_cell  # noqa: PLC0415  reports are drawn from findings

        return finding_cell(self)


def worth_of_model(facts: Facts) -> float:
    """What communication has to gain that is only much for what the run computes."""
    return WORTH_RATIO if facts.is_across_hosts else WORTH_OF_MODEL


def is_worth_a_change(facts: Facts, finding: Finding) -> bool:
    """Whether what a finding predicts makes a run one that something is wrong with."""
    return finding.predicted_gain > (worth_of_model(facts) if finding.cause in _MUCH_COMMUNICATION else WORTH_RATIO)


#: Of so many steps two are few, if they have this much of what is lost.
MANY_STEPS: Final = 40
NEARLY_ALL: Final = 0.75


def is_of_two_steps(lost_ns: Floats) -> bool:
    """Whether one or two of many steps have nearly all that is lost: nobody can tell whether there will be others.

    >>> is_of_two_steps(np.array([0.0] * 48 + [9.0, 8.0])), is_of_two_steps(np.array([0.0] * 47 + [9.0, 8.0, 7.0]))
    (True, False)

    Args:
        lost_ns: float[step].
    """
    lost = np.sort(np.maximum(lost_ns, 0.0))[::-1]
    return len(lost) >= MANY_STEPS and float(lost[:2].sum()) > NEARLY_ALL * float(lost.sum())


def promise(
    outcome: Outcome,
    *,
    class_: str,
    cause: str,
    ranks: tuple[int, ...],
    confidence: float,
    remedy: str,
    sentence: str,
    evidence: Mapping[str, Any] | None = None,
    order_gain: float | None = None,
) -> Finding:
    """A finding whose remedy does what a replay told: the gain and its interval are those of `outcome`."""
    return Finding(
        class_=class_,
        cause=cause,
        ranks=ranks,
        predicted_gain=outcome.gain,
        gain_interval=outcome.interval,
        confidence=confidence,
        evidence=dict(evidence or {}),
        remedy=remedy,
        sentence=sentence,
        outcome=outcome,
        order_gain=order_gain,
    )


class Rule(Protocol):
    """Looks for one kind of cause, in a run that has steps."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """The findings, none if there is no such cause."""


def accumulation(facts: Facts) -> str:
    """How gradients of several passes are gathered before they are reduced, in the words of the runtime that was recorded."""
    return "no_sync()" if facts.trace.meta.runtime == "torch" else "backward_passes_per_step"
