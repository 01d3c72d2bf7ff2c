"""Loops of Python over single numbers or small tensors, inside of the model."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...timeline.vocabulary import Category
from ..facts import Facts
from ..model.arrays import Floats
from ..model.code import CodeLooks, Place
from ..model.words import milliseconds
from ..predict.change import Change
from .base import WORTH_RATIO, Finding, promise
from .places import ON_ALL, described

_FORWARD: Final = str(Category.FORWARD)
_BACKWARD: Final = str(Category.BACKWARD)
_PARTS: Final = (_FORWARD, _BACKWARD)

#: A line that runs so often in a step is in a loop.
MIN_TIMES: Final = 100
#: So short is a line that hands one small thing to PyTorch: the operator takes less than calling it.  A line that adds several
#: operations to autograd's graph may take as long for each.
MAX_EACH_NS: Final = 20_000
#: As long may other lines of a function with such a line take that run as often: they are in the loop, too.
MAX_EACH_IN_LOOP_NS: Final = 40_000
#: What backward takes of a network's own operations beside their forward.
_BACKWARD_TO_FORWARD: Final = 2.0


class PythonLoops:
    """Lines of forward, or of what autograd calls, that run very often and do very little each time."""

    def find(self, facts: Facts) -> Sequence[Finding]:
        """At most one finding, for what all ranks have (one rank alone is a straggler)."""
        code = facts.code
        if code is None or facts.replay is None or facts.breakdown.on_device:
            return []
        found: list[tuple[str, Place]] = []
        spent_ns = {part: np.zeros(len(facts.ranks)) for part in _PARTS}
        for part in _PARTS:
            loops = _loops(code, part, range(len(facts.ranks)))
            spent = code.spent_by_rank(part, [number for place in loops for number in code.numbers(place)])
            if spent.min() >= ON_ALL * spent.mean() and spent.any():
                spent_ns[part] = spent
                found += [(part, place) for place in loops]
        if not found:
            return []
        by_backward_ns = _of_backward(facts, spent_ns[_FORWARD], [place for part, place in found if part == _FORWARD])
        spent_ns[_BACKWARD] = np.maximum(spent_ns[_BACKWARD], by_backward_ns)
        change = _without(facts, _FORWARD, spent_ns[_FORWARD]) & _without(facts, _BACKWARD, spent_ns[_BACKWARD])
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
                    "backward_of_it_ns": round(float(by_backward_ns.mean())),
                    "pattern": "always",
                },
                remedy=(
                    "Do it for all elements at once: slices, a boolean mask, torch.where, scatter_, torch.tril, einsum; make "
                    "what does not depend on the batch once, before the training; or compile the function (torch.compile)."
                ),
                sentence=(
                    f"In {part} a loop of Python does many small things one by one: {most.where}. That line takes "
                    f"{milliseconds(most.mean_ns)} of each {milliseconds(facts.mean_step_ns)} step, {each_us:.1f} µs each time"
                    + _in_backward(part, float(by_backward_ns.mean()), [place for _, place in found])
                ),
            )
        ]


def _without(facts: Facts, part: str, spent_ns: Floats) -> Change:
    """A part without what each rank spends of it in a mean step."""
    took = facts.part(part).astype(float)
    share = np.minimum(spent_ns / np.maximum(took.mean(axis=1), 1.0), 1.0)
    return facts.without(part, took * share[:, None])


def _of_backward(facts: Facts, forward_ns: Floats, loops: Sequence[Place]) -> Floats:
    """What backward takes for the operations of loops in forward, of a mean step: float[rank], ns; an estimate.

    At least as long as their forward, whose operations are as small; and what is left of backward beside twice the forward of
    all else, if that is more.  No larger share of backward than theirs of the operations in autograd's graph.
    """
    of_nodes = max((place.of_graph_nodes for place in loops), default=0)
    if not of_nodes:
        return np.zeros(len(facts.ranks))
    share = min(sum(place.graph_nodes for place in loops) / of_nodes, 1.0)
    forward, backward = (facts.part(part).mean(axis=1) for part in _PARTS)
    left = backward - _BACKWARD_TO_FORWARD * np.maximum(forward - forward_ns, 0.0)
    taken: Floats = np.minimum(np.maximum(forward_ns, left), share * backward)
    return taken


def _in_backward(part: str, by_backward_ns: float, loops: Sequence[Place]) -> str:
    """What is said of backward, where the largest loop is in a part."""
    if part == _BACKWARD:
        return "."
    if not any(place.of_graph_nodes for place in loops):
        return "; what backward does for it, if it does, comes on top."
    nodes = sum(place.graph_nodes for place in loops)
    if not nodes:
        return "; backward does nothing for it."
    return f"; backward goes through {nodes:,} operations of such lines, about {milliseconds(by_backward_ns)} of each step."


def _loops(code: CodeLooks, part: str, rows: Sequence[int]) -> list[Place]:
    """The lines of a part that are such loops, on some ranks."""
    often = [place for place in code.lines_of(part, rows) if place.times >= MIN_TIMES]
    functions = {(place.file, place.function) for place in often if _is_short(place, MAX_EACH_NS)}
    return [
        place for place in often if (place.file, place.function) in functions and _is_short(place, MAX_EACH_IN_LOOP_NS)
    ]


def _is_short(place: Place, max_each_ns: int) -> bool:
    return place.mean_ns <= max_each_ns * max(place.times, place.graph_nodes)
