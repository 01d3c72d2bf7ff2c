"""The one palette: of categories, themes and states, in reports, plots, pages, terminal, NVTX ranges and nvtxt files alike.

Okabe and Ito's colours where they suffice.  All pairs stay apart for colour-blind eyes, too: tests/unit/timeline/test_palette.py
simulates them.  Knows nothing of the tools that draw.
"""

from collections.abc import Mapping
from typing import Final

from .vocabulary import Category

#: As HTML writes them: `#RRGGBB`.
CATEGORY_COLOURS: Final[Mapping[Category, str]] = {
    Category.DATA: "#E69F00",
    Category.H2D: "#F0E442",
    Category.FORWARD: "#56B4E9",
    Category.BACKWARD: "#0072B2",
    Category.NEGOTIATE: "#CC79A7",
    Category.QUEUE: "#884380",
    Category.FUSION: "#FFC59B",
    Category.COLLECTIVE: "#D55E00",
    Category.OPTIMIZER: "#00B088",
    Category.CHECKPOINT: "#3D3D3D",
    Category.OTHER: "#BBBBBB",
}
#: The part of a step in which nothing happens is none of the categories.
IDLE_COLOUR: Final = "#707070"

#: Text and lines by theme; dashboard/assets/style.css says the same.
THEMES: Final[Mapping[str, Mapping[str, str]]] = {
    "light": {
        "text": "#1F2933",
        "soft": "#52606D",
        "paper": "#FFFFFF",
        "line": "#D5DAE0",
        "accent": "#0B5FA5",
        "bad": "#B23A00",
        "good": "#00704F",
    },
    "dark": {
        "text": "#E4E7EB",
        "soft": "#9AA5B1",
        "paper": "#1B232C",
        "line": "#36424F",
        "accent": "#6BB3EE",
        "bad": "#F08A55",
        "good": "#4CC9A0",
    },
}
#: What is slower than usual, and what is quicker: orange and blue are apart for all eyes.
SLOWER: Final = "#D55E00"
QUICKER: Final = "#0072B2"


def argb(category: Category) -> int:
    """An opaque colour as NVTX takes it.

    >>> hex(argb(Category.DATA))
    '0xffe69f00'
    """
    return 0xFF000000 | int(CATEGORY_COLOURS[category][1:], 16)


def channels(colour: str) -> tuple[float, float, float]:
    """Red, green and blue of `#RRGGBB` as linear light, 0 to 1.

    Source: IEC 61966-2-1 (sRGB).
    """
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return _linear(red), _linear(green), _linear(blue)


def contrast(one: str, other: str) -> float:
    """How well one colour is seen on the other, 1 to 21.

    Source: WCAG 2.2, contrast ratio.

    >>> round(contrast("#FFFFFF", "#000000"))
    21
    """
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def ink(colour: str) -> str:
    """Black or white: what is read better on `colour`.

    >>> ink("#0072B2"), ink("#F0E442")
    ('#FFFFFF', '#000000')
    """
    return max(("#FFFFFF", "#000000"), key=lambda text: contrast(text, colour))


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else float(((value + 0.055) / 1.055) ** 2.4)  # noqa: PLR2004  of the standard


def _luminance(colour: str) -> float:
    red, green, blue = channels(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
