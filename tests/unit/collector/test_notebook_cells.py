"""What a notebook shows of an analysis and of a finding."""

import html
import re
from dataclasses import replace

from tests.traces import make_trace, uniform
from tlkit.collector import analyze

SLOW = uniform(2, 30, {"forward": 20, "backward": 40})


def top_level_rules(style: str) -> list[str]:
    """The selectors that stand outside of every brace, and those inside of media queries."""
    depth, selector, found = 0, "", []
    for character in style:
        if character == "{":
            depth += 1
            if depth == 1:
                found.append(selector.strip())
            selector = ""
        elif character == "}":
            depth -= 1
            selector = ""
        else:
            selector += character
    assert depth == 0
    return found


def test_an_analysis_shows_its_verdict_its_plan_and_a_plot() -> None:
    """In words that are the verdict's own."""
    analysis = analyze(make_trace(SLOW))
    cell = analysis._repr_html_()

    assert html.escape(analysis.verdict.sentence) in cell
    assert "The mean step" in cell
    assert cell.count("<svg") == 1
    assert not re.search(r"<script|<iframe", cell)


def test_a_cell_leaves_the_rest_of_the_notebook_alone() -> None:
    """Every rule of its style is inside its own element."""
    cell = analyze(make_trace(SLOW))._repr_html_()
    style = re.findall(r"<style>(.*?)</style>", cell, re.DOTALL)

    assert len(style) == 1
    assert {
        rule.replace('[data-jp-theme-light="true"] ', "").replace('[data-jp-theme-light="false"] ', "")
        for rule in top_level_rules(style[0])
    } == {
        ".tlkit-report",
        "@media (prefers-color-scheme: dark)",
    }


def test_names_in_a_finding_are_no_markup() -> None:
    """A trace holds hostile text."""
    verdict = replace(analyze(make_trace(SLOW)).verdict, sentence="<img src=x onerror=alert(1)>")

    assert "<img" not in verdict._repr_html_()
    assert "&lt;img" in verdict._repr_html_()
