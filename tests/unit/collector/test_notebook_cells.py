"""What a notebook shows of an analysis and of a finding."""

import html
import re
from dataclasses import replace
from typing import Any

import pytest

from tests.traces import make_trace, uniform
from tlkit.collector import Analysis, analyze
from tlkit.collector.model.words import milliseconds
from tlkit.collector.predict.what_if import predict
from tlkit.timeline.errors import UsageError

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


def controls_of(analysis: Analysis) -> tuple[dict[str, Any], Any]:
    """The sliders and switches by their labels, and what shows the answer."""
    *sliders, switches, answer = analysis.what_if().children
    return {control.description: control for control in (*sliders, *switches.children)}, answer


def test_controls_answer_with_what_is_predicted() -> None:
    """Each slider and switch changes the answer, together as they would in a replay."""
    pytest.importorskip("ipywidgets")
    analysis = analyze(make_trace(uniform(2, 30, {"data": 30, "forward": 20, "backward": 40, "wait:collective": 10})))
    controls, answer = controls_of(analysis)
    before = answer.value
    controls["waiting for data, %"].value = 0
    without_data = answer.value
    controls["computation, %"].value = 50
    predicted = predict(analysis.facts, ["data=0%", "compute=50%"])
    both = answer.value
    controls["no negotiation"].value = True
    controls["waiting for data, %"].value = 100
    controls["computation, %"].value = 100

    assert before == "Move a slider to see what a step would take."
    assert f"{milliseconds(70e6)} instead of {milliseconds(100e6)}" in without_data
    assert milliseconds(predicted.predicted_ns) in both
    assert predicted.predicted_ns < 70e6
    assert answer.value.endswith("0% less.")


def test_what_cannot_be_predicted_is_the_answer() -> None:
    """In the words of the error, escaped."""
    pytest.importorskip("ipywidgets")
    controls, answer = controls_of(analyze(make_trace([[], []])))
    controls["waiting for data, %"].value = 0

    assert "this trace has none" in answer.value


def test_without_ipywidgets_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package itself does not need it."""
    monkeypatch.setattr("tlkit.collector.reports.notebook_controls.find_spec", lambda _: None)

    with pytest.raises(UsageError, match="pip install 'tlkit\\[notebook\\]'"):
        analyze(make_trace(SLOW)).what_if()
