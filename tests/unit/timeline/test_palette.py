"""Colours stay apart, for colour-blind eyes, too.

The eyes are simulated as Machado, Oliveira and Fernandes do it (A Physiologically-based Model for Simulation of Color Vision
Deficiency, 2009, table 1, severity 1.0, on linear light); distances are CIEDE2000 (Sharma, Wu and Dalal, The CIEDE2000
Color-Difference Formula: Implementation Notes, 2005).
"""

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest

from tlkit.collector.reports.palette import COLOURS
from tlkit.timeline.palette import CATEGORY_COLOURS, THEMES, channels, contrast, ink

EYES = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
#: sRGB to XYZ, D65.
TO_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]])  # fmt: skip
WHITE = np.array([0.95047, 1.0, 1.08883])
Lab = tuple[float, float, float]


def lab(colour: str, eyes: str) -> Lab:
    """CIE L*a*b* of what these eyes see."""
    xyz = TO_XYZ @ np.clip(EYES[eyes] @ np.array(channels(colour)), 0, 1) / WHITE
    x, y, z = (
        float(np.cbrt(value)) if value > 216 / 24389 else (24389 / 27 * float(value) + 16) / 116 for value in xyz
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def ciede2000(one: Lab, other: Lab) -> float:
    """The formula's steps in the order of the paper, k_L = k_C = k_H = 1."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean_c = (math.hypot(a1, b1) + math.hypot(a2, b2)) / 2
    g = 0.5 * (1 - math.sqrt(mean_c**7 / (mean_c**7 + 25**7)))
    c1, c2 = math.hypot((1 + g) * a1, b1), math.hypot((1 + g) * a2, b2)
    h1, h2 = (math.degrees(math.atan2(b, (1 + g) * a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = 0.0 if not c1 * c2 else (h2 - h1 + 180) % 360 - 180
    dh = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2))
    ml, mc = (l1 + l2) / 2, (c1 + c2) / 2
    mh = h1 + h2 if not c1 * c2 else (h1 + turn / 2) % 360

    def cosine(degrees: float) -> float:
        return math.cos(math.radians(degrees))

    t = 1 - 0.17 * cosine(mh - 30) + 0.24 * cosine(2 * mh) + 0.32 * cosine(3 * mh + 6) - 0.2 * cosine(4 * mh - 63)
    sl = 1 + 0.015 * (ml - 50) ** 2 / math.sqrt(20 + (ml - 50) ** 2)
    sc, sh = 1 + 0.045 * mc, 1 + 0.015 * mc * t
    rotation = math.sin(math.radians(60 * math.exp(-(((mh - 275) / 25) ** 2))))
    rt = -2 * math.sqrt(mc**7 / (mc**7 + 25**7)) * rotation
    return math.sqrt(((l2 - l1) / sl) ** 2 + ((c2 - c1) / sc) ** 2 + (dh / sh) ** 2 + rt * ((c2 - c1) / sc) * (dh / sh))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((50.0, 2.49, -0.001), (50.0, -2.49, 0.0011), 7.2195),
        ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_distance_is_the_papers(one: Lab, other: Lab, expected: float) -> None:
    """Pairs 1, 17, 10 and 34 of its table of test data."""
    assert ciede2000(one, other) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("eyes", EYES)
def test_any_two_parts_of_a_step_are_told_apart(eyes: str) -> None:
    """Any of them may lie beside any other on a timeline."""
    near = {
        pair: round(distance, 1)
        for pair in itertools.combinations(COLOURS, 2)
        if (distance := ciede2000(lab(COLOURS[pair[0]], eyes), lab(COLOURS[pair[1]], eyes))) < 10
    }
    assert near == {}


def test_names_are_read_on_every_colour() -> None:
    """Black or white, at the contrast that WCAG asks of text."""
    assert {name: colour for name, colour in COLOURS.items() if contrast(ink(colour), colour) < 4.5} == {}


@pytest.mark.parametrize("theme", THEMES)
def test_words_are_read_on_paper(theme: str) -> None:
    colours = THEMES[theme]
    words = ("text", "soft", "accent", "bad", "good")
    assert {name: colours[name] for name in words if contrast(colours[name], colours["paper"]) < 4.5} == {}


def test_the_style_sheet_has_the_same_themes() -> None:
    """CSS cannot import them."""
    css = (Path(__file__).parents[3] / "dashboard" / "assets" / "style.css").read_text()
    light, dark = re.findall(r":root[^{]*\{(.*?)\}", css, re.DOTALL)[:2]
    for theme, block in (("light", light), ("dark", dark)):
        said = dict(re.findall(r"--([a-z]+): (#[0-9A-F]{6})", block))
        assert {name: said.get(name) for name in THEMES[theme]} == dict(THEMES[theme])


def test_every_category_has_a_colour() -> None:
    assert set(CATEGORY_COLOURS) <= set(COLOURS)
    assert len(set(COLOURS.values())) == len(COLOURS)
