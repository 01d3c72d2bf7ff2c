"""Loops of Python over single numbers or small tensors, inside of the model."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...timeline.vocabulary import Category
from ..facts import Facts
from ..model.code import CodeLooks, Place
from ..model.words import milliseconds
from .base import WORTH_RATIO, Finding, promise
from .places import ON_ALL, described

_PARTS: Final = (str(Category.FORWARD), str(Category.BACKWARD))

#: A line that runs so often in a step is in a loop.
MIN_TIMES: Final = 100
#: So short is a line that hands one small thing to PyTorch: the operator takes less than calling it.
MAX_EACH_NS: Final = 15_000


class PythonLoops:
    """Lines of forward, or of what autograd calls, that run very often and do very little each time."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding, for what all ranks have (one rank alone is a straggler)."""
        code = facts.code
        if code is None or facts.replay is None or facts.breakdown.on_device:
            return []
        found: list[tuple[str, Place]] = []
        change = None
        for part in _PARTS:
            loops = _loops(code, part, range(len(facts.ranks)))
            spent = code.spent_by_rank(part, [number for place in loops for number in code.numbers(place)])
            if spent.min() < ON_ALL * spent.mean() or not spent.any():
                continue
            took = facts.part(part).astype(float)
            share = np.minimum(spent / np.maximum(took.mean(axis=1), 1.0), 1.0)
            without = facts.without(part, took * share[:, None])
            change = without if change is None else change & without
            found += [(part, place) for place in loops]
        if change is None or not found:
            return []
        outcome = facts.outcome(change)
        if outcome.gain < WORTH_RATIO / 2:
            return []
        part, most = max(found, key=lambda pair: pair[1].mean_ns)
        each_us = most.mean_ns / most.times / 1e3
        return [
            promise(
                outcome,
                class_="compute",
                cause="python-loop",
                ranks=facts.ranks,
                confidence=0.7,
                evidence={
                    "lines": [{"part": part, **described(place)} for part, place in found[:10]],
                    "pattern": "always",
                },
                remedy=(
                    "Do it for all elements at once: slices, a boolean mask, torch.where, scatter_, torch.tril, einsum; make "
                    "what does not depend on the batch once, before the training; or compile the function (torch.compile)."
                ),
                sentence=(
                    f"In {part} a loop of Python does many small things one by one: {most.where}. That line takes "
                    f"{milliseconds(most.mean_ns)} of each {milliseconds(facts.mean_step_ns)} step, {each_us:.1f} µs each time"
                    + ("; what backward does for it, if it does, comes on top." if part == _PARTS[0] else ".")
                ),
            )
        ]


def _loops(code: CodeLooks, part: str, rows: Sequence[int]) -> list[Place]:
    """The lines of a part that are such loops, on some ranks."""
    return [
        place
        for place in code.lines_of(part, rows)
        if place.times >= MIN_TIMES and place.mean_ns <= MAX_EACH_NS * place.times
    ]
