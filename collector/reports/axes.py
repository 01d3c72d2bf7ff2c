"""Axes and scales of drawings: from values to pixels, ticks, short numbers, and colours between colours."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Axis:
    """From values to pixels."""

    low: float
    high: float
    begin: float
    end: float
    is_log: bool = False
    names: tuple[str, ...] = ()
    """Of a category axis: value i is name i."""

    def at(self, value: float) -> float:
        """Where a value lies, px."""
        if self.is_log:
            value = math.log10(value) if value > 0 else self.low
        span = self.high - self.low or 1.0
        return self.begin + (value - self.low) / span * (self.end - self.begin)

    def ticks(self, most: int, *, whole: bool = False) -> list[tuple[float, str]]:
        """Values and their labels."""
        if self.is_log:
            every = max(1, math.ceil((self.high - self.low) / most))
            powers = range(math.ceil(self.low), math.floor(self.high) + 1, every)
            return [(10.0**power, short_number(10.0**power)) for power in powers]
        step = nice_step((self.high - self.low) / max(most, 1))
        step = max(step, 1.0) if whole else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [(number * step, short_number(number * step)) for number in range(first, min(last, first + 40) + 1)]


def nice_step(least: float) -> float:
    """1, 2 or 5 times a power of ten, at least `least`.

    >>> nice_step(0.3), nice_step(7.0)
    (0.5, 10.0)
    """
    if least <= 0 or not math.isfinite(least):
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def short_number(value: float) -> str:
    """A number for an axis.

    >>> short_number(1500000), short_number(0.25), short_number(-3), short_number(0)
    ('1.5M', '0.25', '-3', '0')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:.4g}"


def mixed(scale: Sequence[Sequence[Any]], share: float) -> str:
    """The colour at a share of a scale of `[share, "#RRGGBB"]`.

    >>> mixed([[0, "#000000"], [1, "#ffffff"]], 0.5)
    '#808080'
    """
    for (low, first), (high, second) in itertools.pairwise(scale):
        if share <= high:
            part = (share - low) / ((high - low) or 1.0)
            channels = ((int(first[at : at + 2], 16), int(second[at : at + 2], 16)) for at in (1, 3, 5))
            return "#" + "".join(f"{round(one + (other - one) * part):02x}" for one, other in channels)
    return str(scale[-1][1])
