"""Which line of the code a finding is about, where the training thread was looked at while it was recorded."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ...timeline.model.code_spans import DIVIDES_MODELS
from ...timeline.vocabulary import Category
from ..facts import Facts
from ..model.code import CodeLooks, Place
from ..model.words import milliseconds
from .base import FIND_THREAD, SHOWS_LINE, WORTH_RATIO, Finding, promise

_DATA: Final = str(Category.DATA)
_FORWARD: Final = str(Category.FORWARD)
_BACKWARD: Final = str(Category.BACKWARD)

#: Causes that lie in one part of the step, on the ranks that they name.
_PART_OF: Final = {
    "host-code": str(Category.OTHER),
    "batches-made-in-loop": str(Category.OTHER),
    "slow-loader": _DATA,
    "slow-loader-on-some-ranks": _DATA,
    "blocked-forward": _FORWARD,
    "blocked-backward": _BACKWARD,
    "blocked-optimizer": str(Category.OPTIMIZER),
    "garbage-collection": str(Category.OTHER),
    "checkpoint-stall": str(Category.CHECKPOINT),
}
#: Causes that divide that part between them.
_IS_INPUT: Final = {"batches-made-in-loop": True, "host-code": False}
#: Code of these runs in any step, and waits for what others do: that it was seen there says nothing of a line.
_ON_THEIR_OWN: Final = frozenset(
    {"torch", DIVIDES_MODELS, "tlkit", "horovod", "threading", "multiprocessing", "queue", "concurrent", "selectors"}
)
#: A rank with less than this share of what they have on average does not have it.
ON_ALL: Final = 0.4
#: It is most of what a sentence speaks of.
_MOST: Final = 0.75
#: A line that runs so many times as often as it did.
PILES_UP: Final = 1.5
#: Of the looks in a function that is called back in backward so many are at its own lines.
_OWN_LINES: Final = 0.2
#: The user's own gradient of an operation, and what checkpointing computes once more.
_OF_AUTOGRAD: Final = frozenset({"backward", "vjp", "jvp", "forward"})


def with_places(facts: Facts, findings: Sequence[Finding]) -> list[Finding]:
    """The findings, with the line of the code that each is about where that is known."""
    return [_with_place(facts, finding) for finding in findings]


def _with_place(facts: Facts, finding: Finding) -> Finding:
    if "code" in finding.evidence:  # it was found by its line
        return finding
    if finding.cause == "interpreter-lock" or _root_cause(finding) == "held-by-another-thread":
        return _with_threads_place(facts, finding)
    part = _part(finding)
    if part == _DATA and finding.evidence.get("workers"):
        return _with_workers_place(facts, finding)
    if facts.code is None or part is None or part not in facts.breakdown.parts_ns:
        return finding
    rows = [row for row, rank in enumerate(facts.ranks) if rank in finding.ranks]
    # Beside ranks without it, what those do as well is usual.
    beside = [row for row in range(len(facts.ranks)) if row not in rows] if finding.class_ == "straggler" else []
    named = finding.evidence.get("steps")
    steps = earlier = None
    if finding.evidence.get("pattern") in {"periodic", "sometimes", "window"} and isinstance(named, list):
        steps = np.isin(facts.steps.numbers, named)
    elif finding.evidence.get("pattern") == "growing":
        # What there is more of in the second half than in the first.
        steps = np.arange(facts.steps.count) >= facts.steps.count // 2
        earlier = ~steps
    place = facts.code.hottest(
        part,
        rows,
        steps=steps,
        beside=beside,
        beside_steps=earlier,
        libraries_left_out=_ON_THEIR_OWN,
        is_input=_IS_INPUT.get(finding.cause),
    )
    if place is None:
        return finding
    much = "Most" if place.share >= _MOST else "Much"
    more_often = _more_often(place) if earlier is not None else ""
    return _named(finding, place, f"{much} of it is", more_often)


def _named(finding: Finding, place: Place, what: str, besides: str = "") -> Finding:
    """The finding with a place; who is told it need not look for it.

    Args:
        what: is there: "Most of it is".
        besides: another sentence, after a space.
    """
    inside = f" (inside {place.library})" if place.library else ""
    return replace(
        finding,
        sentence=f"{finding.sentence} {what} at {place.where}{inside}.{besides}",
        remedy=finding.remedy.replace(SHOWS_LINE, "").replace(FIND_THREAD, ""),
        evidence={**finding.evidence, "code": described(place)},
    )


def _more_often(place: Place) -> str:
    """Of a line that runs more and more often in a step."""
    if not place.times_at_first or place.times < PILES_UP * place.times_at_first:
        return ""
    return (
        f" It ran {place.times_at_first:,} times a step when it was counted first, {place.times:,} times at last: something that "
        "calls it piles up, as hooks or callbacks that are registered again and again."
    )


def _with_workers_place(facts: Facts, finding: Finding) -> Finding:
    rows = [row for row, rank in enumerate(facts.ranks) if rank in finding.ranks]
    place = None if facts.worker_code is None else facts.worker_code.hottest(_DATA, rows)
    return finding if place is None else _named(finding, place, f"Its workers spend {place.share:.0%} of their time")


def _with_threads_place(facts: Facts, finding: Finding) -> Finding:
    rows = [row for row, rank in enumerate(facts.ranks) if rank in finding.ranks]
    place = None if facts.thread_code is None else facts.thread_code.hottest(str(Category.OTHER), rows)
    return finding if place is None else _named(finding, place, f"{place.share:.0%} of what such threads run is")


def _root_cause(finding: Finding) -> str:
    found = finding.evidence.get("root_cause")
    return str(found.get("is", "")) if isinstance(found, dict) else ""


def _part(finding: Finding) -> str | None:
    by_part = finding.evidence.get("excess_by_category_ns") if finding.class_ == "straggler" else None
    if isinstance(by_part, dict) and by_part:
        return str(max(by_part, key=lambda name: float(by_part[name])))
    told = finding.evidence.get("part")
    return _PART_OF.get(finding.cause) or (told if isinstance(told, str) else None)


def described(place: Place) -> dict[str, Any]:
    """A place as reports have it."""
    return {
        "file": place.file,
        "lines": list(place.lines),
        "function": place.function,
        "text": place.text,
        "times": place.times,
        "times_at_first": place.times_at_first,
        "library": place.library,
        "mean_ns": round(place.mean_ns),
        "share": round(place.share, 3),
        "looks": place.looks,
    }


class CodeInBackward:
    """Functions of the user's that run in backward: hooks on gradients and modules."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding, for what all ranks have (one rank alone is a straggler)."""
        code = facts.code
        if code is None or facts.replay is None or facts.breakdown.on_device:
            return []
        rows = range(len(facts.ranks))
        by_function = _called_back(code, rows)
        if not by_function:
            return []
        called = [number for number, one in enumerate(code.places) if (one.file, one.function) in by_function]
        spent = code.spent_by_rank(_BACKWARD, called)
        took = facts.part(_BACKWARD).astype(float)
        # What is blocked there is another finding's (blocked.py), which has a line, too.
        working_ns = np.maximum(spent - _blocked_ns(facts), 0.0)
        if not working_ns.any() or working_ns.min() < ON_ALL * working_ns.mean():
            return []
        share = np.minimum(working_ns / np.maximum(took.mean(axis=1), 1.0), 1.0)
        outcome = facts.outcome(facts.without(_BACKWARD, took * share[:, None]))
        if outcome.gain < WORTH_RATIO / 2:
            return []
        names = sorted(by_function, key=lambda key: -by_function[key])
        told = ", ".join(f"{function}() in {file}" for file, function in names[:3])
        return [
            promise(
                outcome,
                class_="compute",
                cause="code-in-backward",
                ranks=facts.ranks,
                confidence=0.7,
                evidence={
                    "by_function_ns": {
                        f"{file} {function}": round(by_function[file, function]) for file, function in names[:10]
                    },
                    "pattern": "always",
                },
                remedy=(
                    "Do once a step, for all gradients together and after backward, what hooks do for each tensor "
                    "(clip_grad_norm_, torch._foreach_norm, one statistic for all), do it every so many steps, or leave it out."
                ),
                sentence=(
                    f"Of each backward {milliseconds(float(spent.mean()))} are code of yours that autograd calls back, hooks on "
                    f"gradients or modules: {told}."
                ),
            )
        ]


def _blocked_ns(facts: Facts) -> np.ndarray:
    """How long each rank is blocked in a mean step's backward, as far as counters tell: float[rank]."""
    cpu = facts.cpu
    if not cpu.is_known or not cpu.knows_starved or _BACKWARD not in cpu.metered:
        return np.zeros(len(facts.ranks))
    blocked = facts.part(_BACKWARD) - cpu.running_ns[_BACKWARD] - cpu.starved_ns[_BACKWARD]
    mean: np.ndarray = np.maximum(blocked.mean(axis=1), 0.0)
    return mean


def _called_back(code: CodeLooks, rows: Sequence[int]) -> dict[tuple[str, str], float]:
    """By file and function what each takes of a mean step's backward on some ranks, ns; those that autograd calls back."""
    spent = code.spent(code.chosen(_BACKWARD, rows), _BACKWARD, rows)
    in_forward = code.spent(code.chosen(_FORWARD, rows), _FORWARD, rows)
    found: dict[tuple[str, str], float] = {}
    own: dict[tuple[str, str], float] = {}
    also_in_forward = set()
    for number in np.flatnonzero((spent > 0) | (in_forward > 0)).tolist():
        place = code.places[number]
        key = (place.file, place.function)
        found[key] = found.get(key, 0.0) + float(spent[number])
        own[key] = own.get(key, 0.0) + (float(spent[number]) if not place.library else 0.0)
        if in_forward[number] > 0:
            also_in_forward.add(key)
    return {
        key: ns
        for key, ns in found.items()
        if own[key] > _OWN_LINES * ns and key not in also_in_forward and key[1] not in _OF_AUTOGRAD
    }
