"""Blocks of steps within one job: what each is set to, and what its steps take."""

from collections.abc import Sequence
from statistics import median
from typing import Final

from ...timeline.trials import FUSED, THREADS, Block
from .jobs import JobResult
from .outcome import Tried

#: Steps of a block, and how many of them a change takes to have its effect.
BLOCK_STEPS: Final = 8
SETTLING_STEPS: Final = 2

Turn = Sequence[Tried | None]
"""What is tried in the blocks, one after the other; None for the run as it is."""


def blocks_of(turn: Turn, warm_up: int) -> list[Block]:
    """The plan of the ranks."""
    return [Block(warm_up), *(Block(BLOCK_STEPS, _live_settings(one)) for one in turn)]


def _live_settings(one: Tried | None) -> dict[str, str]:
    """What a block says."""
    if one is None:
        return {}
    live = {name: value for name, value in one.candidate.settings.items() if name in {THREADS, FUSED}}
    return {**live, **one.candidate.environment}


def block_times(result: JobResult, warm_up: int, count: int) -> list[float]:
    """The median step of each whole block, without the steps in which a change takes effect: ns."""
    ends = [trial.ends_ns for trial in result.trials]
    length = min(map(len, ends))
    times = []
    for number in range(count):
        first = warm_up + number * BLOCK_STEPS
        if first + BLOCK_STEPS >= length:
            break
        steps = [
            (mine[step] - mine[step - 1])
            for mine in ends
            for step in range(first + SETTLING_STEPS, first + BLOCK_STEPS)
        ]
        times.append(float(median(steps)))
    return times
