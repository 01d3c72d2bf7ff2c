"""What a tuning finds out about each setting, and what it makes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from .losses import Comparison
from .settings import Candidate
from .statistics import WORTH_RATIO, estimate, interval, is_gain, is_hopeless

#: What the losses say, for people.
_LOSSES: Final[Mapping[str, str]] = {
    "same": "the losses are the same to the last digit",
    "rounding": "the losses differ by rounding only",
    "unknown": "its effect on the loss was not seen",
}


class How(StrEnum):
    """How a setting was measured."""

    BLOCKS = "blocks"
    """Of steps, in turn within one job."""
    JOBS = "jobs"
    """Short ones, in turn."""
    NOT = "not tried"


class Kept(StrEnum):
    """What is made of a setting."""

    KEPT = "kept"
    SUGGESTED = "suggested"
    """It gains, and changes results: for people to decide."""
    NO = "no"
    OPEN = "open"
    """Not measured, or not to the end."""


@dataclass(kw_only=True, slots=True)
class Tried:
    """One setting, and what is known of it so far."""

    candidate: Candidate
    how: How = How.NOT
    gains: list[float] = field(default_factory=list)
    """One of each pair: the share of the step time that went."""
    losses: Comparison | None = None
    failed: str = ""
    """Why it cannot be measured; "" if it can."""
    better: str = ""
    """Another value of the same setting that gains more, or of which this one takes nothing away."""

    @property
    def gain(self) -> float | None:
        """The median, None without a pair."""
        return estimate(self.gains) if self.gains else None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """95 % interval of the gain, None for too few pairs."""
        return interval(self.gains)

    @property
    def is_decided(self) -> bool:
        """Whether more pairs would change nothing."""
        return bool(self.failed) or is_gain(self.gains) or is_hopeless(self.gains)

    @property
    def is_worth_it(self) -> bool:
        """Whether it gains, by the rule for that."""
        return not self.failed and is_gain(self.gains)

    @property
    def changes_results(self) -> bool:
        """Whether it may not be kept silently."""
        return self.candidate.is_lossy or (self.losses is not None and self.losses.verdict == "changed")

    def verdict(self, *, allow_lossy: bool) -> tuple[Kept, str]:
        """Whether it is kept, and why or why not.

        Args:
            allow_lossy: keep what changes results, too.
        """
        if self.failed:
            return Kept.NO, self.failed
        if not self.gains:
            return Kept.OPEN, "not tried: no time left (--minutes)"
        if not self.is_worth_it:
            return self._refused()
        if self.changes_results and not allow_lossy:
            return Kept.SUGGESTED, f"{self._change()}: kept with --allow-lossy only"
        if self.better:
            return Kept.NO, self.better
        return Kept.KEPT, f"{self._change()}, which --allow-lossy takes" if self.changes_results else self._unchanged()

    def _refused(self) -> tuple[Kept, str]:
        """Of a setting whose pairs show no gain."""
        gain, bounds = estimate(self.gains), self.bounds
        if gain < -WORTH_RATIO and (max(self.gains) < 0 if bounds is None else bounds[1] < 0):
            return Kept.NO, "slower"
        if bounds is None and not is_hopeless(self.gains):
            return Kept.OPEN, f"{len(self.gains)} pairs are too few to decide"
        return Kept.NO, f"gains no more than {WORTH_RATIO:.0%}" if gain <= WORTH_RATIO else "may be chance"

    def _change(self) -> str:
        if self.losses is not None and self.losses.verdict == "changed":
            return f"the losses differ by {self.losses.difference:.2g} of their value (step {self.losses.step})"
        return "sends gradients with fewer digits"

    def _unchanged(self) -> str:
        if self.losses is None:
            return _LOSSES["unknown"]
        text = _LOSSES[self.losses.verdict]
        return text if self.losses.repeats else f"{text}, as far as runs without it agree with each other"


@dataclass(kw_only=True, slots=True)
class Together:
    """The settings that are kept, all at once."""

    candidates: Sequence[Candidate]
    predicted: float | None = None
    gains: list[float] = field(default_factory=list)
    steps_ns: tuple[float, float] | None = None
    """Mean step without and with them: of each the median over the jobs."""
    losses: Comparison | None = None
    failed: str = ""

    @property
    def bounds(self) -> tuple[float, float] | None:
        """95 % interval of the gain, None for too few pairs."""
        return interval(self.gains)

    @property
    def changes_results(self) -> bool:
        """Whether the losses show more than rounding, or a setting does it by what it is."""
        changed = self.losses is not None and self.losses.verdict == "changed"
        return changed or any(candidate.is_lossy for candidate in self.candidates)

    @property
    def is_worth_it(self) -> bool:
        """Whether it gains, by the same rule."""
        return not self.failed and is_gain(self.gains)


def best_of_each(tried: Sequence[Tried], *, allow_lossy: bool) -> list[Tried]:
    """Of the settings that are kept the best value each, best first; the others are marked."""
    kept = [one for one in tried if one.verdict(allow_lossy=allow_lossy)[0] is Kept.KEPT]
    kept.sort(key=lambda one: -estimate(one.gains))
    best: dict[str, Tried] = {}
    for one in kept:
        if one.candidate.name in best:
            one.better = f"{best[one.candidate.name].candidate.label} gains more"
        else:
            best[one.candidate.name] = one
    return list(best.values())
