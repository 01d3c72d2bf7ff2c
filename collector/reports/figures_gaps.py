"""Plots of a device's gaps: how much time lies in gaps of which length and why, and how far the host is ahead."""

from itertools import pairwise
from typing import Final

import numpy as np

from ...timeline.palette import CATEGORY_COLOURS, IDLE_COLOUR
from ...timeline.vocabulary import Category
from ..analysis import Analysis
from ..model import idle
from ..model.gaps import EDGES_NS, Gaps, Lead
from .device import REASON_WORDS
from .figures import Figure, layout
from .figures_device import steps_behind

_UNITS: Final = ((1_000_000, "ms"), (1_000, "µs"))
#: All of the palette, so that they stay apart.
_COLOURS: Final = {
    idle.LAUNCH: CATEGORY_COLOURS[Category.BACKWARD],
    idle.HOST_WORK: CATEGORY_COLOURS[Category.FORWARD],
    idle.INPUT: CATEGORY_COLOURS[Category.DATA],
    idle.BLOCKING_COPY: CATEGORY_COLOURS[Category.H2D],
    idle.SYNCHRONISATION: CATEGORY_COLOURS[Category.COLLECTIVE],
    idle.COLLECTIVE: CATEGORY_COLOURS[Category.NEGOTIATE],
    idle.HOST: IDLE_COLOUR,
    idle.QUEUED: CATEGORY_COLOURS[Category.OPTIMIZER],
    idle.BETWEEN: CATEGORY_COLOURS[Category.OTHER],
}


def class_names() -> list[str]:
    """What the classes of length are called."""
    names = [f"below {_length(EDGES_NS[1])}"]
    names += [f"{_length(low)} to {_length(high)}" for low, high in pairwise(EDGES_NS[1:])]
    return [*names, f"{_length(EDGES_NS[-1])} and more"]


def _length(value_ns: int) -> str:
    size, unit = next(((size, unit) for size, unit in _UNITS if value_ns >= size), (1, "ns"))
    return f"{value_ns // size} {unit}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004


def gaps(found: Gaps, steps: int, *, has_steps: bool, theme: str = "light") -> Figure:
    """Idle time by length of the gap and by reason.

    Args:
        steps: of the rank, over which the time is a mean.
    """
    shown = np.flatnonzero(found.counts)
    # From the shortest that occurs to the longest: a class without gaps between them is a finding, too.
    classes = range(int(shown.min()), int(shown.max()) + 1) if len(shown) else range(0)
    names = class_names()
    labels = [f"{names[number]} ({_count(found.counts[number] / steps)})" for number in classes]
    per = "a step" if has_steps else "in all"
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "name": REASON_WORDS[reason].removeprefix("idle: "),
                "y": labels,
                "x": np.round(found.time_ns[reason][list(classes)] / steps / 1e6, 5).tolist(),
                "marker": {"color": _COLOURS[reason]},
            }
            for reason in idle.REASONS
            if reason in found.time_ns
        ],
        "layout": layout(
            theme,
            barmode="stack",
            showlegend=True,
            height=110 + 26 * len(labels),
            xaxis={"title": {"text": "ms of a mean step" if has_steps else "ms of the recording"}},
            yaxis={"autorange": "reversed", "type": "category", "title": {"text": f"length of a gap (how many {per})"}},
        ),
    }


def lead(analysis: Analysis, found: Lead, theme: str = "light") -> Figure:
    """How long activities wait in the device's queue, over time."""
    # Hundreds of ms in one run and single µs in another: the unit that fits.
    size, unit = (1e6, "ms") if float(found.median_ns.max()) >= 1e6 else (1e3, "µs")  # noqa: PLR2004
    lines = (
        ("median", found.median_ns, CATEGORY_COLOURS[Category.BACKWARD]),
        ("a tenth of them waits less than", found.low_ns, CATEGORY_COLOURS[Category.COLLECTIVE]),
    )
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": np.round(found.at_ns / 1e9, 6).tolist(),
                "y": np.round(values / size, 4).tolist(),
                "line": {"color": colour},
            }
            for name, values, colour in lines
        ],
        "layout": layout(
            theme,
            height=240,
            showlegend=True,
            shapes=steps_behind(analysis, theme, found.rank),
            xaxis={"title": {"text": "seconds"}},
            yaxis={"title": {"text": unit}, "rangemode": "tozero"},
        ),
    }
