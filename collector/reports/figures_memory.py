"""Plots and words of devices' memory."""

from typing import Final

import numpy as np

from ...timeline.palette import CATEGORY_COLOURS, THEMES
from ...timeline.vocabulary import Category
from ..analysis import Analysis
from ..model.memory import Memory
from ..model.words import NBYTES_SIZES, nbytes_words
from .figures import Figure, layout
from .figures_device import steps_behind

MAX_POINTS: Final = 400


def memory(analysis: Analysis, found: Memory, theme: str = "light") -> Figure:
    """What is allocated and reserved over time; the highest of each stretch, so that no peak is lost."""
    top = max(found.peak_bytes, float(found.reserved.max(initial=0.0)))
    size, unit = next(((size, unit) for size, unit in NBYTES_SIZES if top >= size), (1, "bytes"))
    lines = [("allocated", found.at_ns, found.allocated, CATEGORY_COLOURS[Category.BACKWARD])]
    if len(found.reserved):
        lines.append(("reserved", found.reserved_at_ns, found.reserved, CATEGORY_COLOURS[Category.COLLECTIVE]))
    data = []
    for name, at_ns, values, colour in lines:
        first = np.unique(np.linspace(0, len(at_ns), MAX_POINTS + 1).astype(int)[:-1])
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": np.round(at_ns[first] / 1e9, 6).tolist(),
                "y": np.round(np.maximum.reduceat(values, first) / size, 4).tolist(),
                "line": {"color": colour},
            }
        )
    peak = [{"x": [float(found.at_ns[found.peak]) / 1e9], "y": [found.peak_bytes / size]}]
    data += [
        {
            "type": "scatter",
            "mode": "markers",
            "name": f"peak {nbytes_words(found.peak_bytes)}",
            **point,
            "marker": {"color": THEMES[theme]["bad"], "size": 9},
        }
        for point in peak
    ]
    return {
        "data": data,
        "layout": layout(
            theme,
            height=280,
            showlegend=True,
            shapes=steps_behind(analysis, theme, found.rank),
            xaxis={"title": {"text": "seconds"}},
            yaxis={"title": {"text": unit}, "rangemode": "tozero"},
        ),
    }
