"""The one sentence that a reader needs."""

from collections.abc import Sequence

from ...timeline.vocabulary import Category
from ..facts import Facts
from ..model.breakdown import EXPOSED
from ..model.words import milliseconds
from . import WORTH_RATIO, Finding

#: A trace of communication alone that says nothing of this much of the step cannot be called healthy.
UNSEEN_RATIO = 0.4


def choose_verdict(facts: Facts, findings: Sequence[Finding]) -> Finding:
    """The finding with the largest gain, or why there is none."""
    if not facts.steps.count:
        return _nothing_known(facts)
    worthy = [finding for finding in findings if finding.predicted_gain > WORTH_RATIO]
    unseen = _unseen_ratio(facts)
    if worthy and (facts.breakdown.knows_compute or worthy[0].predicted_gain >= (unseen or 0) / 2):
        return worthy[0]
    if unseen is not None and unseen > UNSEEN_RATIO:
        return _unseen(facts, unseen)
    if worthy:
        return worthy[0]
    if not facts.breakdown.knows_compute:
        return _plain(
            "healthy",
            "nothing-found",
            "No communication problem stands out in this trace, which shows communication only.",
        )
    return _healthy(facts)


def _plain(class_: str, cause: str, sentence: str, remedy: str = "", confidence: float = 0.9) -> Finding:
    return Finding(
        class_=class_,
        cause=cause,
        ranks=(),
        predicted_gain=0.0,
        gain_interval=(0.0, 0.0),
        confidence=confidence,
        remedy=remedy,
        sentence=sentence,
    )


def _nothing_known(facts: Facts) -> Finding:
    if facts.breakdown.knows_compute:
        what = "the optimizer never stepped while the timeline was on"
    else:
        what = "no tensor comes back often enough to tell steps"
    return _plain(
        "unknown",
        "no-steps",
        f"There are no steps in this trace: {what}. Record at least ten steps of training.",
        "Record a longer run.",
    )


def _unseen_ratio(facts: Facts) -> float | None:
    """Share of the steps of which a communication-only trace says nothing; None for other traces."""
    if facts.breakdown.knows_compute:
        return None
    return float(facts.part(str(Category.OTHER)).sum() / max(facts.breakdown.step_ns.sum(), 1))


def _unseen(facts: Facts, ratio: float) -> Finding:
    return _plain(
        "unknown",
        "time-outside-communication",
        f"{ratio:.0%} of each {milliseconds(facts.mean_step_ns)} step passes without communication; whether data loading or "
        "computation takes it, this trace does not say: record the run with tl-run.",
        "HOROVOD_TIMELINE=t.json tl-run -np N python train.py records data loading, forward, backward and optimizer as well.",
        0.9,
    )


def _healthy(facts: Facts) -> Finding:
    """Say what the time goes to, so that `healthy` is an answer and not a shrug."""
    total = max(float(facts.breakdown.step_ns.sum()), 1.0)

    def share(*names: str) -> float:
        return sum(float(facts.part(name).sum()) for name in names) / total

    model = share(*map(str, (Category.FORWARD, Category.BACKWARD, Category.OPTIMIZER)))
    waiting = share(*EXPOSED)
    is_known = bool(waiting) or facts.trace.meta.size == 1 or not facts.trace.collectives.empty
    communication = (
        f"{waiting:.0%} waiting for communication"
        if is_known
        else "and what communication takes of it cannot be told, since none was recorded"
    )
    bound = " (the run is compute-bound)" if is_known and model >= 0.5 else ""  # noqa: PLR2004  half
    sentence = (
        f"Nothing stands out: {model:.0%} of each {milliseconds(facts.mean_step_ns)} step is forward, backward and "
        f"optimizer{bound}, {share(str(Category.DATA)):.0%} waiting for data, {communication}."
    )
    return _plain("healthy", "nothing-found", sentence)
