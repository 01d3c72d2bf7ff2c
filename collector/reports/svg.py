"""Figures (figures.py) as SVG: for the report, which needs no program then, and for the first screen, which is there at once.

Draws bars (stacked, lying or standing, from a base), lines, points and maps, with axes, a legend and a title for each mark that
browsers show under the pointer.  Colours of text and lines come from the page's style sheet, so that dark and print work without
drawing again.  Every name is escaped here.
"""

import html
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ...timeline.commands.arguments import clean
from ...timeline.palette import THEMES
from .axes import Axis, mixed, short_number

Figure = dict[str, Any]
Range = tuple[float, float]

WIDTH: Final = 1200
#: Of a letter at 13 px, on average.
_LETTER: Final = 7.0
_ROW: Final = 20
_MAX_LABEL: Final = 40
#: Shades of a map; neighbours of the same shade are one mark.
_SHADES: Final = 24
_THEMED: Final = {
    colour: f"var(--{name})" for theme in THEMES.values() for name, colour in theme.items() if name != "paper"
}
#: What the page's style sheet has to say.
STYLE: Final = """
.chart { width: 100%; height: auto; display: block; font: 13px system-ui, sans-serif; }
.chart text { fill: var(--text); } .chart .tick { fill: var(--soft); } .chart .grid { stroke: var(--line); stroke-width: 1; }
.chart .paper { fill: var(--paper); } .chart .line { fill: none; stroke-width: 1.6; } .chart a { cursor: pointer; }
.scrolls > .chart { min-width: 760px; }
"""


def to_svg(figure: Figure, label: str) -> str:
    """The figure as an svg element, which says where its x axis lies, for scripts that let a stretch of it be chosen.

    Args:
        label: what screen readers hear of it.
    """
    drawing = _Drawing(figure)
    body = "".join(drawing.draw())
    axis = drawing.x
    ends = f"{axis.begin:.1f} {axis.end:.1f} {axis.low:.9g} {axis.high:.9g}"
    return (
        f'<svg class="chart" role="img" aria-label="{_text(label)}" viewBox="0 0 {drawing.width} {drawing.height:.0f}" '
        f'data-x="{ends}" xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


class _Drawing:
    def __init__(self, figure: Figure) -> None:
        self.traces: list[dict[str, Any]] = figure["data"]
        self.layout: dict[str, Any] = figure["layout"]
        self.width = int(self.layout.get("width", WIDTH))
        self.lies = any(trace.get("orientation") == "h" for trace in self.traces)
        self.stacked = self.layout.get("barmode") == "stack"
        self.x_of, self.y_of = self.layout.get("xaxis", {}), self.layout.get("yaxis", {})
        # Dictionaries keep the order in which names were first seen.
        self.xs = self._names("x", self.x_of)
        self.ys = self._names("y", self.y_of)
        self.named = [trace for trace in self.traces if trace.get("name") and trace.get("showlegend", True)]
        longest = max((len(name) for name in self.ys), default=0)
        self.left = 70 if not self.ys else min(longest, _MAX_LABEL) * _LETTER + 24
        scale = any(trace["type"] == "heatmap" for trace in self.traces)
        self.top = self._legend_height() + (24 if scale else 14)  # the scale's unit stands above it
        self.right = 90 if scale else 20
        rows = 24 * len(self.ys) if self.ys and not self.layout.get("height") else 0
        self.height = float(self.layout.get("height") or self.top + rows + 60)
        self.bottom = self.height - (46 if self._title(self.x_of) else 28)
        self.x = self._axis("x", self.x_of, self.xs, self.left, self.width - self.right)
        reverse = self.y_of.get("autorange") == "reversed" or bool(self.ys)
        ends = (self.top, self.bottom) if reverse else (self.bottom, self.top)
        self.y = self._axis("y", self.y_of, self.ys, *ends)

    def draw(self) -> Iterator[str]:
        yield from self._axes()
        yield from self._shapes("below")
        ends: dict[tuple[float, int], float] = {}
        for trace in self.traces:
            kind = trace["type"]
            if kind == "bar":
                yield from self._bars(trace, ends)
            elif kind == "heatmap":
                yield from self._map(trace)
            else:
                yield from self._points(trace)
        yield from self._shapes("above")
        yield from self._legend()

    def _names(self, key: str, axis: dict[str, Any]) -> tuple[str, ...]:
        """The names on an axis of names; () if it is one of numbers."""
        if axis.get("categoryarray"):
            return tuple(map(str, axis["categoryarray"]))
        seen: dict[str, None] = {}
        for trace in self.traces:
            values = trace.get(key) or []
            if values and isinstance(values[0], str):
                seen.update(dict.fromkeys(map(str, values)))
        return tuple(seen)

    def _axis(self, key: str, of: dict[str, Any], names: tuple[str, ...], begin: float, end: float) -> Axis:
        if names:
            return Axis(-0.5, len(names) - 0.5, begin, end, names=names)
        is_log = of.get("type") == "log"
        if of.get("range"):
            return Axis(float(of["range"][0]), float(of["range"][1]), begin, end, is_log=is_log)
        low, high = self._extent(key)
        if is_log:
            low, high = math.log10(max(low, 1e-12)), math.log10(max(high, 1e-12))
        return Axis(low, high if high > low else low + 1.0, begin, end, is_log=is_log)

    def _extent(self, key: str) -> Range:
        values: list[float] = []
        totals: dict[tuple[Any, int], float] = {}
        along = "y" if self.lies else "x"
        for trace in self.traces:
            own = [float(value) for value in trace.get(key) or []]
            if trace["type"] == "bar" and key != along:
                base = trace.get("base") or [0.0] * len(own)
                for place, start, value in zip(trace[along], base, own, strict=True):
                    where = (place, 1 if value >= 0 else -1)
                    totals[where] = (totals.get(where, 0.0) if self.stacked else 0.0) + value
                    values.append(start + (totals[where] if self.stacked else value))
                    values.append(start if "base" in trace else 0.0)
            elif trace["type"] in {"bar", "heatmap"} and own:
                half = (own[1] - own[0]) / 2 if len(own) > 1 else 0.5
                values += [own[0] - half, own[-1] + half]
            else:
                values += own
        if self.layout.get(f"{key}axis", {}).get("rangemode") == "tozero":
            values.append(0.0)
        low, high = min(values, default=0.0), max(values, default=1.0)
        room = 0.04 * (high - low) if key == "y" or self.lies else 0.0
        return low - (room if low < 0 else 0.0), high + room

    def _bars(self, trace: dict[str, Any], ends: dict[tuple[float, int], float]) -> Iterator[str]:
        places, values = (trace["y"], trace["x"]) if self.lies else (trace["x"], trace["y"])
        across, along = (self.y, self.x) if self.lies else (self.x, self.y)
        thick = self._thickness(places, across) * float(trace.get("width", 1.0))
        bases = trace.get("base") or [None] * len(values)
        for number, (place, value, base) in enumerate(zip(places, values, bases, strict=True)):
            if not value:
                continue
            index = across.names.index(str(place)) if across.names else float(place)
            key = (index, 1 if value > 0 else -1)
            start = float(base) if base is not None else ends.get(key, 0.0) if self.stacked else 0.0
            ends[key] = start + value
            low, high = sorted((along.at(start), along.at(start + value)))
            low, high = max(low, min(along.begin, along.end)), min(high, max(along.begin, along.end))
            middle = across.at(index)
            box = (
                (low, middle - thick / 2, high - low, thick)
                if self.lies
                else (middle - thick / 2, low, thick, high - low)
            )
            colour = trace["marker"]["color"]
            words = self._words(trace, number, place, value)
            yield _rect(*box, colour if isinstance(colour, str) else colour[number], words)

    def _thickness(self, places: Sequence[Any], across: Axis) -> float:
        if across.names:
            return abs(across.end - across.begin) / len(across.names) * 0.72
        numbers = sorted({float(place) for place in places})
        least = min((b - a for a, b in itertools.pairwise(numbers)), default=1.0)
        return max(abs(across.at(least) - across.at(0.0)) * (1 - float(self.layout.get("bargap", 0.0))), 0.5)

    def _map(self, trace: dict[str, Any]) -> Iterator[str]:
        rows: list[list[float | None]] = trace["z"]
        numbers = [value for row in rows for value in row if value is not None]
        low = float(trace.get("zmin", min(numbers, default=0.0)))
        high = float(trace.get("zmax", max(numbers, default=1.0)))
        span = high - low or 1.0
        xs = trace["x"]
        wide = abs(self.x.end - self.x.begin) / max(len(xs), 1)
        tall = abs(self.y.end - self.y.begin) / max(len(rows), 1)
        for number, row in enumerate(rows):
            shades = [None if value is None else round(min(max((value - low) / span, 0), 1) * _SHADES) for value in row]
            begin = 0
            while begin < len(row):
                until = begin + 1
                while until < len(row) and shades[until] == shades[begin] and not self.xs:
                    until += 1
                shade = shades[begin]
                if shade is not None:
                    colour, opacity = _shaded(trace["colorscale"], shade / _SHADES, is_diverging=low < 0 < high)
                    where = f"{xs[begin]}" if until == begin + 1 else f"{xs[begin]} to {xs[until - 1]}"
                    mean = math.fsum(value for value in row[begin:until] if value is not None) / (until - begin)
                    words = f"{trace['y'][number]}, {self._title(self.x_of)} {where}: {mean:.2f} {_unit(trace)}"
                    left = self.x.begin + begin * wide
                    yield _rect(
                        left, self.y.at(number) - tall / 2, wide * (until - begin) + 0.3, tall, colour, words, opacity
                    )
                begin = until
        for part in range(_SHADES + 1):
            at = self.bottom - (self.bottom - self.top) * (part + 1) / (_SHADES + 1)
            tall = (self.bottom - self.top) / (_SHADES + 1) + 0.5
            colour, opacity = _shaded(trace["colorscale"], part / _SHADES, is_diverging=low < 0 < high)
            yield _rect(self.width - 70, at, 12, tall, colour, opacity=opacity)
        for value, at in (
            (low, self.bottom),
            ((low + high) / 2, (self.top + self.bottom) / 2 + 4),
            (high, self.top + 8),
        ):
            yield f'<text class="tick" x="{self.width - 54}" y="{at:.1f}">{_text(short_number(float(f"{value:.2g}")))}</text>'
        yield f'<text class="tick" x="{self.width - 54}" y="{self.top - 6:.1f}">{_text(_unit(trace))}</text>'

    def _points(self, trace: dict[str, Any]) -> Iterator[str]:
        def place(axis: Axis, value: Any) -> float:
            return axis.at(axis.names.index(str(value)) if axis.names else float(value))

        spots = [(place(self.x, x), place(self.y, y)) for x, y in zip(trace["x"], trace["y"], strict=True)]
        line, marker = trace.get("line") or {}, trace.get("marker") or {}
        colour = line.get("color") or marker.get("color") or "currentColor"
        if "lines" in trace.get("mode", "lines") and len(spots) > 1:
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
            dash = ' stroke-dasharray="4 4"' if line.get("dash") else ""
            title = f"<title>{_text(trace.get('name', ''))}</title>"
            yield f'<path class="line" d="{path}" stroke="{_themed(colour)}"{dash}>{title}</path>'
        if "markers" in trace.get("mode", ""):
            sizes = marker.get("size", 6)
            for number, (x, y) in enumerate(spots):
                radius = (sizes[number] if isinstance(sizes, list) else sizes) / 2
                words = self._words(trace, number, trace["x"][number], trace["y"][number])
                yield (
                    f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{_themed(colour)}" fill-opacity="0.8">'
                    f"<title>{_text(words)}</title></circle>"
                )

    def _words(self, trace: dict[str, Any], number: int, place: Any, value: Any) -> str:
        if trace.get("text"):
            return str(trace["text"][number])
        unit = self._title(self.x_of if self.lies else self.y_of)
        where = place if isinstance(place, str) else f"{self._title(self.x_of)} {short_number(float(place))}"
        return f"{where}: {value:.4g} {unit} {trace.get('name') or ''}".strip()

    def _axes(self) -> Iterator[str]:
        if self.xs:
            every = max(1, math.ceil(len(self.xs) * 44 / max(self.x.end - self.x.begin, 1)))
            for number, name in list(enumerate(self.xs))[::every]:
                yield _label(self.x.at(number), self.bottom + 16, name, "middle", 14)
        elif self.x_of.get("showticklabels", True):
            for value, words in self.x.ticks(max(self.width // 110, 2), whole=_is_whole(self.x_of)):
                at = self.x.at(value)
                yield f'<path class="grid" d="M{at:.1f} {self.top:.1f}V{self.bottom:.1f}"/>'
                yield _label(at, self.bottom + 16, words, "middle")
        if self.ys:
            every = max(1, math.ceil(len(self.ys) * 14 / max(self.bottom - self.top, 1)))
            for number, name in list(enumerate(self.ys))[::every]:
                yield _label(self.left - 8, self.y.at(number) + 4, name, "end", _MAX_LABEL)
        else:
            for value, words in self.y.ticks(5 if self.height < 240 else 7, whole=_is_whole(self.y_of)):  # noqa: PLR2004
                at = self.y.at(value)
                yield f'<path class="grid" d="M{self.left:.1f} {at:.1f}H{self.width - self.right}"/>'
                yield _label(self.left - 8, at + 4, words, "end")
        if self._title(self.x_of):
            yield _label((self.x.begin + self.x.end) / 2, self.height - 8, self._title(self.x_of), "middle", 120)
        if self._title(self.y_of) and not self.ys:
            middle = (self.top + self.bottom) / 2
            yield (
                f'<text class="tick" text-anchor="middle" transform="translate(14 {middle:.1f}) rotate(-90)">'
                f"{_text(self._title(self.y_of))}</text>"
            )

    def _shapes(self, layer: str) -> Iterator[str]:
        for shape in self.layout.get("shapes", []):
            if shape.get("layer", "above") != layer:
                continue
            x0, x1 = (
                (self.x.begin, self.x.end)
                if shape.get("xref") == "paper"
                else (self.x.at(shape["x0"]), self.x.at(shape["x1"]))
            )
            y0, y1 = (
                (self.top, self.bottom)
                if shape.get("yref") == "paper"
                else (self.y.at(shape["y0"]), self.y.at(shape["y1"]))
            )
            if shape["type"] == "rect":
                left, right = max(min(x0, x1), self.x.begin), min(max(x0, x1), self.x.end)
                if right > left:
                    colour = f'{_themed(shape["fillcolor"])}" fill-opacity="{shape.get("opacity", 1)}'
                    yield (
                        f'<rect x="{left:.1f}" y="{min(y0, y1):.1f}" width="{right - left:.1f}" height="{abs(y1 - y0):.1f}" '
                        f'fill="{colour}"/>'
                    )
            else:
                yield (
                    f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="{shape["line"].get("color", "currentColor")}" '
                    'stroke-dasharray="4 4" fill="none"/>'
                )

    def _legend_places(self) -> list[tuple[float, float, str, str]]:
        places, x, y = [], 4.0, 14.0
        names = [(str(trace["name"]), _colour_of(trace)) for trace in self.named]
        for name, colour in names if len(names) > 1 or self.layout.get("showlegend") else []:
            wide = 30 + len(name[:_MAX_LABEL]) * _LETTER
            if x + wide > self.width and x > 4:  # noqa: PLR2004  the left edge
                x, y = 4.0, y + _ROW
            places.append((x, y, name, colour))
            x += wide
        return places

    def _legend_height(self) -> float:
        places = self._legend_places()
        return places[-1][1] + 4 if places else 0.0

    def _legend(self) -> Iterator[str]:
        for x, y, name, colour in self._legend_places():
            yield _rect(x, y - 10, 12, 12, colour)
            yield f'<text x="{x + 17:.1f}" y="{y:.1f}">{_text(_cut(name, _MAX_LABEL))}</text>'

    @staticmethod
    def _title(axis: dict[str, Any]) -> str:
        return str(axis.get("title", {}).get("text", ""))


def _colour_of(trace: dict[str, Any]) -> str:
    colour = (trace.get("marker") or {}).get("color") or (trace.get("line") or {}).get("color") or "currentColor"
    return colour if isinstance(colour, str) else str(colour[0])


def _is_whole(axis: dict[str, Any]) -> bool:
    return str(axis.get("tickformat", "")).endswith("d")


def _unit(trace: dict[str, Any]) -> str:
    return str(trace.get("colorbar", {}).get("title", {}).get("text", ""))


def _shaded(scale: Sequence[Sequence[Any]], share: float, *, is_diverging: bool) -> tuple[str, float]:
    """Colour and opacity: around zero the paper shows through, whichever it is."""
    if not is_diverging:
        return mixed(scale, share), 1.0
    return str(scale[-1 if share > 0.5 else 0][1]), round(abs(2 * share - 1), 3)  # noqa: PLR2004  zero is in the middle


def _rect(x: float, y: float, width: float, height: float, colour: str, words: str = "", opacity: float = 1.0) -> str:
    title = f"><title>{_text(words)}</title></rect>" if words else "/>"
    size = f'width="{max(width, 0.3):.1f}" height="{max(height, 0.3):.1f}"'
    pale = f' fill-opacity="{opacity}"' if opacity < 1 else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{_themed(colour)}"{pale}{title}'


def _themed(colour: str) -> str:
    """Colours of a theme by their names in the style sheet, so that they change with it."""
    return _THEMED.get(colour, _text(colour))


def _label(x: float, y: float, words: str, anchor: str, most: int = 20) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_text(_cut(words, most))}</text>'


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else f"{words[: most // 2]}…{words[-most // 2 + 1 :]}"


def _text(words: str) -> str:
    return html.escape(clean(words))
