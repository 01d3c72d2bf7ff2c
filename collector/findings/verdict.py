"""The one sentence that a reader needs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ...timeline.vocabulary import Category
from ..facts import Facts
from ..model.breakdown import EXPOSED
from ..model.condition import Condition
from ..model.words import milliseconds
from .base import WORTH_RATIO, Finding, is_worth_a_change
from .costly_settings import costly_settings
from .device_trouble import find_lost
from .device_verdict import device_verdict, healthy_device
from .incomplete import incomplete, only_told
from .order import CIRCUMSTANCES
from .plain import plain
from .unseen import verdict_of_communication

#: A step of which this much is computed by the model is bound by it.
BOUND_RATIO: Final = 0.5


def choose_verdict(facts: Facts, findings: Sequence[Finding], condition: Condition) -> Finding:
    """The finding with the largest gain, or why there is none; a lost device, or a run without an end, is said first."""
    verdict = _of_steps(facts, findings, condition)
    lost = find_lost(facts)
    if lost is not None:
        return replace(lost, sentence=f"{lost.sentence} Until then: {verdict.sentence}")
    if not condition.has_failed:
        return verdict
    first = condition.sentences()[0]
    if verdict.class_ in {"healthy", "unknown"}:
        return plain(
            "unknown",
            condition.ending,
            first if verdict.class_ == "unknown" else f"{first} Until then: {verdict.sentence}",
            _what_to_do(condition),
            ranks=condition.blamed_ranks,
        )
    return replace(verdict, sentence=f"{first} Until then: {verdict.sentence}")


def _of_steps(facts: Facts, findings: Sequence[Finding], condition: Condition) -> Finding:
    """What the analysed steps tell."""
    if not facts.steps.count:
        return device_verdict(facts, ()) or _nothing_known(facts)
    worthy = [finding for finding in findings if is_worth_a_change(facts, finding)]
    if not facts.breakdown.knows_compute:
        return verdict_of_communication(facts, worthy)
    unexplained = device_verdict(facts, worthy)
    if unexplained is not None:
        return unexplained
    if condition.is_incomplete and not facts.trace.collectives.empty:
        return incomplete(facts, condition, only_told(facts, condition, worthy))
    settings = costly_settings(facts)
    if settings is not None and settings.ranks != facts.ranks:
        settings = None  # beside ranks without it, what it costs shows: those that have it would be slow
    if not worthy:
        return settings or _healthy(facts, findings)
    return _with_settings(_with_load(worthy), settings)


def _with_settings(first: Finding, settings: Finding | None) -> Finding:
    """The finding, and what is on that makes all ranks slow."""
    if settings is None or first.cause == settings.cause:
        return first
    return replace(first, sentence=f"{first.sentence} Besides: {settings.sentence[0].lower()}{settings.sentence[1:]}")


def _with_load(worthy: Sequence[Finding]) -> Finding:
    """The first finding, and that the machine is loaded, if that costs more."""
    first = worthy[0]
    larger = [one for one in worthy[1:] if one.cause in CIRCUMSTANCES and one.predicted_gain > first.predicted_gain]
    return (
        replace(first, sentence=f"{first.sentence} Besides, the machine is loaded: {larger[0].sentence}")
        if larger
        else first
    )


def _what_to_do(condition: Condition) -> str:
    who = f"rank {condition.blamed_ranks[0]}" if condition.blamed_ranks else "the ranks"
    if condition.ending == "hung":
        return (
            f"See where {who} stopped: py-spy dump --pid while it hangs; a branch that not all ranks take, "
            "a collective that one of them leaves out, a lock, a file or the network."
        )
    if any(end.how == "failed" for end in condition.endings):
        return f"The log of {who} has the traceback."
    return f"Look into the log of {who}, and into the system's for processes killed for lack of memory (dmesg)."


def _nothing_known(facts: Facts) -> Finding:
    if facts.trace.meta.format in {"chrome", "perfetto"}:
        return plain(
            "unknown",
            "no-steps",
            "This trace of another tool marks neither steps of training nor work of a device: it can be seen, not diagnosed.",
            "Look at it in tl-dash or Perfetto; for a diagnosis record the training with tl-run or torch.profiler (schedule=…).",
        )
    if facts.trace.meta.format == "xplane":
        return plain(
            "unknown",
            "no-steps",
            "This profile marks no steps, and nothing comes back often enough in it to tell them.",
            "Annotate steps, tf.profiler.experimental.Trace('train', step_num=n, _r=1) or jax.profiler.StepTraceAnnotation("
            "'train', step_num=n), and record at least ten.",
        )
    if any(end.is_snapshot for end in facts.trace.meta.ends.values()):
        return plain(
            "unknown",
            "nothing-hangs",
            "Nothing hangs in these dumps: no rank waits for a collective that another has left out.",
            "Take the dumps of all ranks while the job stands still; what takes its time, a timeline shows (tl-run).",
        )
    if facts.trace.meta.format == "nccl-inspector":
        return plain(
            "unknown",
            "no-steps",
            "Logs of NCCL's Inspector hold collectives and no steps: the table says how fast they were, not what waits for them.",
            "Record the training with tl-run or torch.profiler for a diagnosis.",
        )
    if facts.breakdown.knows_compute:
        what = "the optimizer never stepped while the timeline was on"
    else:
        what = "no tensor comes back often enough to tell steps"
    return plain(
        "unknown",
        "no-steps",
        f"There are no steps in this trace: {what}. Record at least ten steps of training.",
        "Record a longer run.",
    )


def _healthy(facts: Facts, findings: Sequence[Finding]) -> Finding:
    """Say what the time goes to, so that `healthy` is an answer and not a shrug.

    Args:
        findings: what is known to gain something, but not enough.
    """
    if facts.breakdown.on_device:
        return healthy_device(facts)
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
    bound = " (the run is compute-bound)" if is_known and model >= BOUND_RATIO else ""
    sentence = (
        f"Nothing stands out: {model:.0%} of each {milliseconds(facts.mean_step_ns)} step is forward, backward and "
        f"optimizer{bound}, {share(str(Category.DATA)):.0%} waiting for data, {communication}."
    )
    ordinary = max((one.predicted_gain for one in findings), default=0.0)
    if ordinary > WORTH_RATIO:  # what is_worth_a_change asks more of
        sentence += f" With half of what is sent, or what hides it, {ordinary:.0%} of the step would go."
    return plain("healthy", "nothing-found", sentence)
