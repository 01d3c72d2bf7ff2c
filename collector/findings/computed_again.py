"""What every rank computes for nothing: modules again with the same input and weights, passes of backward over one graph, zeros.

The recording compares the calls of some steps (runtime/instrument/repeats.py) and tells which share of forward and backward
repeats what the step has done before, or has gradients that are all zero.
"""

from collections.abc import Sequence
from typing import Final

from ...timeline.vocabulary import Category, CostlySetting
from ..facts import Facts
from ..model.words import milliseconds, shorten
from ..predict.change import Change
from .base import WORTH_RATIO, Finding, promise
from .costly_settings import remedy_of

_MAX_NAME: Final = 60
_ABOUT: Final = {
    CostlySetting.COMPUTED_AGAIN: "Each step computes the same more than once, by modules with the same input and weights",
    CostlySetting.BACKWARD_AGAIN: "Each step goes backward through the same graph more than once (retain_graph=True)",
    CostlySetting.ZERO_GRADIENTS: "Each step goes forward and backward through modules whose gradients are all zero",
}


class ComputedAgain:
    """Calls and passes that repeat what the same step has done before, or change nothing, on all ranks."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most three findings; of one rank alone it is why that rank is slow (root_cause.py)."""
        if facts.replay is None or facts.breakdown.on_device:  # shares are of the host's time
            return []
        found = (_finding(facts, setting) for setting in _ABOUT if facts.is_on_all(setting))
        return [finding for finding in found if finding is not None]


def _finding(facts: Facts, setting: CostlySetting) -> Finding | None:
    on = facts.trace.meta.settings
    share = min(on[rank][str(setting)] for rank in facts.ranks)
    left = dict.fromkeys((str(Category.FORWARD), str(Category.BACKWARD)), 1 - share)
    outcome = facts.outcome(Change(work=left))
    if outcome.gain < WORTH_RATIO / 2:
        return None
    detail = shorten(facts.trace.meta.setting_details.get(facts.ranks[0], {}).get(str(setting), ""), _MAX_NAME)
    return promise(
        outcome,
        class_="compute",
        cause=str(setting),
        ranks=facts.ranks,
        confidence=0.8,
        evidence={"share_of_forward_and_backward": share, "most": detail, "pattern": "always"},
        remedy=f"{_capital(remedy_of([setting]))}.",
        sentence=(
            f"{_ABOUT[setting]}{f' ({detail})' if detail else ''}: {milliseconds(outcome.mean_saved_ns)} of each "
            f"{milliseconds(facts.mean_step_ns)} step."
        ),
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
