"""What a habit of the model's script costs, from how much of the model it concerns: double precision, gradients for nothing.

Each follows from an assumption that the sentence tells.  It is known only where all ranks have it: what one of them does for
nothing may be hidden behind what the others wait for anyway.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...timeline.vocabulary import BACKWARD, Category, CostlySetting
from ..facts import Facts, Outcome
from ..predict.change import Change, all_of, removed
from .gradients import gradients

#: An operation on numbers of half the size takes half as long: twice as many fit into a register, a cache line and a packet.
OF_DOUBLE: Final = 0.5
#: Backward computes gradients of parameters and of inputs; the latter may be needed on the way to what is trained.
OF_PARAMETERS: Final = 0.5
#: Rows of a table that a step reads, at most (the recorder's own limit); only these are sent and applied without the rest.
OF_SPARSE: Final = 0.1
#: A shorter end of backward is the last gradient's own, and what returns from backward.
MIN_END_RATIO: Final = 0.1

_FORWARD: Final = str(Category.FORWARD)
_BACKWARD: Final = str(Category.BACKWARD)
_OPTIMIZER: Final = str(Category.OPTIMIZER)


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingsCost:
    """What several settings cost together."""

    outcome: Outcome
    """Of the run without them."""
    words: tuple[str, ...]
    """What is assumed of each of those whose cost is known."""


def cost_of(facts: Facts, settings: Sequence[CostlySetting]) -> SettingsCost | None:
    """What goes with the settings whose cost is known; None if there are none among them.

    Args:
        settings: what some ranks have on.
    """
    if facts.replay is None:
        return None
    on = facts.trace.meta.settings
    known: list[tuple[Change, str]] = []
    for setting in settings:
        if facts.is_on_all(setting):
            cost = _cost_of_one(facts, setting, min(on[rank][str(setting)] for rank in facts.ranks))
            known += [] if cost is None else [cost]
    if not known:
        return None
    changes, words = zip(*known, strict=True)
    return SettingsCost(outcome=facts.outcome(all_of(changes)), words=tuple(words))


def _cost_of_one(facts: Facts, setting: CostlySetting, share: float) -> tuple[Change, str] | None:
    """What goes, and what is assumed; None if that is not known.

    Args:
        share: of the model's elements, 0 if it is unknown.
    """
    if setting is CostlySetting.UNTRAINED_GRADIENTS:
        return _of_untrained(facts, share)
    of_share = _OF_SHARE.get(setting)
    return of_share(share) if of_share is not None and share else None


def _of_double(share: float) -> tuple[Change, str]:
    left = 1 - OF_DOUBLE * share
    parts = (_FORWARD, _BACKWARD, _OPTIMIZER)
    return Change(work=dict.fromkeys(parts, left), transfer=left), "float32 takes half the time"


def _of_untrained(facts: Facts, share: float) -> tuple[Change, str] | None:
    """The end of backward after the last gradient that anyone asks for, or else a part of backward and of the bytes."""
    took = facts.part(_BACKWARD).astype(float)
    end_ns = _after_last_gradient(facts)
    if end_ns is not None:
        change = Change(work={_BACKWARD: removed(took, end_ns)})
        return change, "backward ends with the last gradient that is reduced"
    if not share:
        return None
    left = 1 - OF_PARAMETERS * share
    asked = _is_all_reduced(facts)
    change = Change(work={_BACKWARD: left}, transfer=1 - share if asked else 1.0)
    return change, f"backward computes {1 - left:.0%} less"


def _of_mostly_zero(share: float) -> tuple[Change, str]:
    left = 1 - (1 - OF_SPARSE) * share
    change = Change(work={_OPTIMIZER: left}, transfer=left)
    return change, "only the rows that a step reads are reduced and updated"


_OF_SHARE: Final[dict[CostlySetting, Callable[[float], tuple[Change, str]]]] = {
    CostlySetting.DOUBLE_PRECISION: _of_double,
    CostlySetting.MOSTLY_ZERO_GRADIENTS: _of_mostly_zero,
}


def _is_all_reduced(facts: Facts) -> bool:
    """Whether gradients are reduced whoever updates them, as DistributedDataParallel does."""
    return facts.trace.meta.runtime == "torch"


def _after_last_gradient(facts: Facts) -> np.ndarray | None:
    """How long backward goes on after the last gradient of a step was submitted: float[rank, step], ns.

    None where gradients are not submitted one by one, or all are reduced, or the last one comes at the end.
    """
    tensors = gradients(facts)
    if tensors.empty or _is_all_reduced(facts) or facts.breakdown.on_device:
        return None
    spans = facts.in_steps(facts.trace.spans[facts.trace.spans["name"] == BACKWARD])
    left = np.zeros(facts.steps.start_ns.shape)
    for row, rank in enumerate(facts.ranks):
        backward = spans[spans["rank"] == rank].sort_values("start_ns", kind="stable")
        starts = backward["start_ns"].to_numpy()
        ends = starts + backward["dur_ns"].to_numpy()
        asked = np.sort(tensors.loc[tensors["rank"] == rank, "submitted_ns"].to_numpy())
        if not len(starts) or not len(asked):
            return None
        last = asked[np.maximum(np.searchsorted(asked, ends, side="right") - 1, 0)]
        step = np.searchsorted(facts.steps.start_ns[row], starts, side="right") - 1
        is_inside = (last >= starts) & (last <= ends) & (step >= 0)
        np.add.at(left[row], step[is_inside], (ends - last)[is_inside])
    is_worth = float(left.mean()) >= MIN_END_RATIO * float(facts.part(_BACKWARD).mean())
    return left if is_worth else None
