"""Which finding comes first: the one with the largest gain, but what departs from the usual before what the run is made of.

Several changes help against the same communication: without the barriers, with another transport, or with a smaller model.  A
departure (a slow link, calls that somebody added, slow agreement) is what a reader looks for; that the model has large
tensors, or that there is a quicker transport, holds for a healthy run, too.  So a rule on communication may say that its gain
counts less (`Finding.order_gain`), and a finding with a larger gain then comes right behind the one that counts more.  A layer of
the model also gives way to faults of other classes that gain more than it counts, and not much less than itself.

That a machine is loaded is a circumstance of the run, and no fault of the job: what would still be worth a change if the cores
were free, or half as much as the circumstance, comes before it.
"""

from collections.abc import Sequence
from typing import Final

from ..facts import Facts
from .base import WORTH_RATIO, Finding

#: Causes that lie with the machine, and not with the job.
CIRCUMSTANCES: Final = frozenset({"starved-of-cores", "slower-cores"})
#: Causes that say when, but not what: the machine's load may be behind them.
ONLY_WHEN: Final = frozenset({"periodic-stalls", "outlier-steps", "slower-cores", "slowing-down", "slow-stretch"})
#: A fault that would be left with this share of what the circumstance costs comes first, too.
OF_CIRCUMSTANCE: Final = 0.5
#: Communication that nothing is wrong with but the model's size.
OF_THE_MODEL: Final = frozenset({"oversize-gradient"})
#: It gives way to faults with this share of its gain.
GIVES_WAY: Final = 0.4
#: Communication that the script asks for; how long agreeing and moving take is the machine's, too, where cores are taken.
OF_THE_SCRIPT: Final = frozenset(
    {
        "barriers",
        "blocking-calls",
        "no-overlap",
        "object-collectives",
        "process-groups-made",
        "reduced-in-every-pass",
        "repeated-broadcasts",
    }
)


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Largest gain first; among those on communication, what counts most (module docstring)."""
    communication = sorted((one for one in findings if one.class_ == "communication"), key=_counts, reverse=True)
    keys: dict[int, float] = {}
    most = float("inf")
    for finding in communication:
        most = min(most, finding.predicted_gain)
        keys[id(finding)] = most
    others = [finding for finding in findings if finding.class_ != "communication"]
    return _departures_first(sorted([*communication, *others], key=lambda one: -keys.get(id(one), one.predicted_gain)))


def _departures_first(ordered: Sequence[Finding]) -> list[Finding]:
    """What the model is made of behind findings of other classes that gain more than it counts."""
    found: list[Finding] = []
    for one in ordered:
        place = len(found)
        if one.class_ != "communication" and one.cause not in CIRCUMSTANCES | ONLY_WHEN:
            while place and _gives_way(found[place - 1], one):
                place -= 1
        found.insert(place, one)
    return found


def _gives_way(layer: Finding, fault: Finding) -> bool:
    is_of_model = layer.cause in OF_THE_MODEL and layer.order_gain is not None
    return is_of_model and fault.predicted_gain > max(_counts(layer), GIVES_WAY * layer.predicted_gain)


def _counts(finding: Finding) -> float:
    return finding.predicted_gain if finding.order_gain is None else finding.order_gain


def faults_first(facts: Facts, ordered: Sequence[Finding]) -> list[Finding]:
    """The findings with circumstances behind the faults that would be left without them.

    Args:
        ordered: as `in_order` gives them.
    """
    found = list(ordered)
    for circumstance in [one for one in ordered if one.cause in CIRCUMSTANCES]:
        left = [number for number, one in enumerate(found) if _is_left(facts, one, circumstance)]
        place = found.index(circumstance)
        if left and left[-1] > place:
            found[place : left[-1] + 1] = _with_left_first(found[place : left[-1] + 1], left, place)
    return found


def _is_beside_load(facts: Facts, finding: Finding) -> bool:
    """Whether steps are longer by what ranks run or are blocked for, and not by what they wait for cores."""
    return facts.all_starved and finding.evidence.get("part", "") in facts.cpu.metered


def _with_left_first(findings: list[Finding], left: Sequence[int], place: int) -> list[Finding]:
    """Those that are left before the others, each in their order."""
    first = {number - place for number in left}
    return [
        *(one for number, one in enumerate(findings) if number in first),
        *(one for number, one in enumerate(findings) if number not in first),
    ]


def _is_left(facts: Facts, finding: Finding, circumstance: Finding) -> bool:
    """Whether a fault of the job is worth a change on a machine that is free, too, or half of what the machine costs."""
    if (
        (finding.cause in ONLY_WHEN and not _is_beside_load(facts, finding))
        or finding.order_gain is not None
        or finding is circumstance
    ):
        return False
    if finding.class_ == "communication" and finding.cause not in OF_THE_SCRIPT:
        return False
    if finding.outcome is None or circumstance.outcome is None:
        return False
    both = facts.outcome(finding.outcome.change & circumstance.outcome.change)
    worth_ns = min(WORTH_RATIO * facts.mean_step_ns, OF_CIRCUMSTANCE * circumstance.outcome.mean_saved_ns)
    return both.mean_saved_ns - circumstance.outcome.mean_saved_ns > worth_ns
