"""How far a gain can be believed: not further than the replay without a change gives the steps that were measured."""

from collections.abc import Sequence
from dataclasses import replace

from ..facts import Facts
from ..predict.gain import MAX_PROMISED_RATIO, SURE_RATIO, widened
from .base import Finding


def error_ratio(facts: Facts) -> float:
    """How far the replay without a change is from the measured steps; 0 where nothing is replayed."""
    return 0.0 if facts.replay is None else facts.replay.error_ratio


def promises_gains(facts: Facts) -> bool:
    """Whether the model is near enough to the run to predict anything."""
    return error_ratio(facts) <= MAX_PROMISED_RATIO


def doubt_note(facts: Facts) -> str | None:
    """What a reader has to know about the gains; None where the model fits the run."""
    error = error_ratio(facts)
    if error <= SURE_RATIO:
        return None
    off = f"Followed without a change, the model of this run is {error:.0%} off the measured steps"
    if error > MAX_PROMISED_RATIO:
        return f"{off}: what a change would gain cannot be predicted, and no gain is promised."
    return f"{off}: gains are uncertain by as much, which their intervals include."


def doubted(facts: Facts, findings: Sequence[Finding]) -> list[Finding]:
    """The findings with what the model's error leaves of their gains."""
    error = error_ratio(facts)
    return [_unpromised(finding) if error > MAX_PROMISED_RATIO else _widened(finding, error) for finding in findings]


def _widened(finding: Finding, error: float) -> Finding:
    """The same gain, with the model's error in its interval."""
    if not finding.predicted_gain:
        return finding
    return replace(finding, gain_interval=widened(finding.predicted_gain, finding.gain_interval, error))


def _unpromised(finding: Finding) -> Finding:
    """What was seen still holds; what it would gain is not said."""
    if not finding.predicted_gain:
        return finding
    return replace(
        finding,
        predicted_gain=0.0,
        gain_interval=(0.0, 0.0),
        outcome=None,
        sentence=f"{finding.sentence} What a change of it would gain cannot be predicted for this run.",
    )
