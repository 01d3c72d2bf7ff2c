"""Plots of devices and counters: small ones beside each other, with the steps behind, and only of what moves."""

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from ...timeline.commands.arguments import clean
from ...timeline.palette import THEMES
from ..analysis import Analysis
from ..model.breakdown import IDLE, PARTS
from ..model.device import Device
from ..model.idle import REASONS
from ..model.words import nbytes_words
from .axes import short_number
from .device import REASON_WORDS
from .figures import Figure, layout
from .figures_data import LINES
from .palette import COLOURS, label_of

MAX_POINTS: Final = 240
WIDTH: Final = 460
#: With more ranks a plot shows the lowest, the median and the highest.
MAX_LINES: Final = 7
#: Devices that have a bar of their own.
MAX_DEVICES: Final = 16
#: What changes by less than this share of its largest value stands still.
MOVES_RATIO: Final = 0.02
#: Two samples of a rank are no curve.
MIN_SAMPLES: Final = 3
#: Reasons of idle time by how much they take: each another grey, and neighbours far apart.
_GREYS: Final = ("#5C5C5C", "#A8A8A8", "#7A7A7A", "#C6C6C6", "#6A6A6A", "#B6B6B6", "#8C8C8C", "#D8D8D8", "#9A9A9A")
#: More steps are no background but a grey.
MAX_STEPS: Final = 80
_UNIT: Final = re.compile(r"\s+\(?(%|MHz|GHz|W|°C|C|[KMGT]i?B(?:/s)?|bytes(?:/s)?|ms|s|GB/s)\)?$")
#: Of devices first, of the training thread last.
_ORDER: Final = ("gpu", "device", "tensor", "process", "host", "network", "memory")


@dataclass(frozen=True, slots=True)
class Small:
    """A small plot, or the value of what stands still."""

    name: str
    unit: str
    figure: Figure | None
    words: str
    """The range of its values."""


def counters(analysis: Analysis, theme: str = "light") -> tuple[Small, ...]:
    """One for each counter; those that move have a plot."""
    table = analysis.trace.counters
    found = [_small(analysis, str(name), rows, theme) for name, rows in table.groupby("name", observed=True)]
    return tuple(sorted(found, key=lambda item: (item.figure is None, _place(item.name), item.name)))


def _place(name: str) -> int:
    low = name.lower()
    return next((place for place, word in enumerate(_ORDER) if word in low), len(_ORDER))


def _small(analysis: Analysis, name: str, rows: pd.DataFrame, theme: str) -> Small:
    label, unit, factor = _label(name)
    values = rows["value"].to_numpy(dtype=float) * factor
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    words = _range_words(low, high, unit)
    samples = int(rows.groupby("rank", observed=True).size().max()) if len(rows) else 0
    moves = high - low > MOVES_RATIO * max(abs(low), abs(high)) and samples >= MIN_SAMPLES
    return Small(label, unit, _lines(analysis, rows, factor, unit, theme) if moves else None, words.strip())


def _range_words(low: float, high: float, unit: str) -> str:
    """The range of a counter's values.

    >>> _range_words(324e6, 363.7e6, "bytes"), _range_words(0, 7.207e6, "bytes/s"), _range_words(46, 96.6, "%")
    ('324 MB to 364 MB', '0 bytes/s to 7.21 MB/s', '46 to 96.6 %')
    """
    ends = [low] if low == high else [low, high]
    if unit in {"bytes", "bytes/s"}:
        return " to ".join(nbytes_words(end) + unit.removeprefix("bytes") for end in ends)
    return f"{' to '.join(map(short_number, ends))} {unit}"


def _label(name: str) -> tuple[str, str, float]:
    """Name, unit and factor: times in ms."""
    if name.endswith("_ns"):
        return clean(name.removesuffix("_ns").replace("_", " ")), "ms", 1e-6
    found = _UNIT.search(name)
    if found is None:
        return clean(name), "", 1.0
    return clean(name[: found.start()]), found[1], 1.0


def _lines(analysis: Analysis, rows: pd.DataFrame, factor: float, unit: str, theme: str) -> Figure:
    by_rank = {int(str(rank)): _thinned(mine, factor) for rank, mine in rows.groupby("rank", observed=True)}
    data: list[dict[str, Any]] = []
    if len(by_rank) > MAX_LINES:
        middle = sorted(by_rank, key=lambda rank: float(by_rank[rank][1].mean()))
        chosen = {"lowest": middle[0], "median": middle[len(middle) // 2], "highest": middle[-1]}
        by_name = {f"{word}: rank {rank}": by_rank[rank] for word, rank in chosen.items()}
    else:
        by_name = {f"rank {rank}": points for rank, points in by_rank.items()}
    for number, (name, (at, value)) in enumerate(by_name.items()):
        line = {"color": LINES[number % len(LINES)], "width": 1.5}
        points = {"x": np.round(at, 4).tolist(), "y": np.round(value, 6).tolist()}
        data.append({"type": "scatter", "mode": "lines", "name": name, **points, "line": line})
    return {
        "data": data,
        "layout": layout(
            theme,
            height=200,
            width=WIDTH,
            showlegend=len(data) > 1,
            shapes=steps_behind(analysis, theme),
            xaxis={"title": {"text": "seconds"}},
            yaxis={"title": {"text": unit}, "rangemode": "tozero"},
        ),
    }


def _thinned(rows: pd.DataFrame, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """Seconds and values, long ones as means of neighbours."""
    ordered = rows.sort_values("ts_ns", kind="stable")
    at, value = ordered["ts_ns"].to_numpy(dtype=float) / 1e9, ordered["value"].to_numpy(dtype=float) * factor
    known = np.isfinite(value)
    at, value = at[known], value[known]
    if len(at) > MAX_POINTS:
        edges = np.linspace(0, len(at), MAX_POINTS + 1).astype(int)[:-1]
        sizes = np.diff(np.append(edges, len(at)))
        at, value = np.add.reduceat(at, edges) / sizes, np.add.reduceat(value, edges) / sizes
    return at, value


def steps_behind(analysis: Analysis, theme: str, rank: int | None = None) -> list[dict[str, Any]]:
    """Every second step of a rank, or of the first one, as a band."""
    steps = analysis.facts.steps
    if not 0 < steps.count <= MAX_STEPS:
        return []
    row = steps.ranks.index(rank) if rank in steps.ranks else 0
    bands = zip((steps.start_ns[row] / 1e9).tolist()[::2], (steps.end_ns[row] / 1e9).tolist()[::2], strict=True)
    grey = {"fillcolor": THEMES[theme]["soft"], "opacity": 0.12, "line": {"width": 0}}
    return [
        {"type": "rect", "yref": "paper", "layer": "below", "y0": 0, "y1": 1, "x0": low, "x1": high, **grey}
        for low, high in bands
    ]


def busy(device: Device, theme: str = "light") -> Figure:
    """What each device does in a mean step, or in the recording: its parts, and its idle time by reason.

    Of more than MAX_DEVICES those that are idle for longest are shown.
    """
    count = max(device.steps.start_ns.shape[1], 1)
    idle = np.sum([values.sum(axis=1) for values in device.idle_ns.values()], axis=0)
    rows = sorted(np.argsort(-idle, kind="stable")[:MAX_DEVICES].tolist())
    names = [f"rank {device.steps.ranks[row]}" for row in rows]
    parts = [
        (label_of(part, device.breakdown), COLOURS[part], device.breakdown.parts_ns[part])
        for part in PARTS
        if part != IDLE
    ]
    reasons = [
        (REASON_WORDS[reason], _GREYS[number], device.idle_ns[reason])
        for number, reason in enumerate(sorted(REASONS, key=lambda reason: -float(device.idle_ns[reason].sum())))
    ]
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": names,
                "x": np.round(values.sum(axis=1)[rows] / count / 1e6, 4).tolist(),
                "marker": {"color": colour, "line": {"width": 0.5, "color": THEMES[theme]["paper"]}},
                "hovertemplate": "%{y}: %{x:.2f} ms<extra>%{fullData.name}</extra>",
            }
            for name, colour, values in (*parts, *reasons)
            if float(values.sum()) >= 0.002 * float(device.steps.duration_ns.sum())
        ],
        "layout": layout(
            theme,
            barmode="stack",
            height=100 + 28 * len(names),
            xaxis={"title": {"text": "ms of a mean step" if device.has_steps else "ms of the recording"}},
            yaxis={"autorange": "reversed", "type": "category"},
        ),
    }
