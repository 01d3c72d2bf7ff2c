"""The first screen: the sentence, what it is worth, where the step time goes, and what would help."""

from collections.abc import Callable
from typing import Any, Final

from dash import dcc, html

from ...collector.model.step_times import step_times
from ...collector.reports import figures
from ...collector.reports.summary import MIN_SHOWN_GAIN, describe_steps
from ...timeline.commands import clean
from ..components import card, finding_card, link, plot
from ..timeline.evidence import place_of
from . import View

#: A slider that stands here changes nothing.
AS_IT_IS: Final = 100


def _percent(name: str) -> Callable[[int], str]:
    return lambda share: f"{name}={share}%"


#: What can be changed on the page: id, label, and the change for a slider's value below AS_IT_IS.
SLIDERS: Final[tuple[tuple[str, str, Callable[[int], str]], ...]] = (
    ("what-if-data", "waiting for data", _percent("data")),
    ("what-if-compute", "computation", _percent("compute")),
    ("what-if-bandwidth", "time of moving bytes", lambda share: f"bandwidth={AS_IT_IS / max(share, 1):.3f}x"),
    ("what-if-latency", "cost of each collective", _percent("latency")),
)


def layout(view: View) -> Any:
    """The page."""
    analysis = view.analysis
    verdict = analysis.verdict
    shown = [finding for finding in analysis.findings if finding.predicted_gain >= MIN_SHOWN_GAIN]
    style = "verdict healthy" if verdict.class_ == "healthy" else "verdict"
    title = verdict.class_ if verdict.class_ == "healthy" else f"{verdict.class_}: {verdict.cause}"
    guilty = verdict.ranks[0] if len(verdict.ranks) == 1 else None
    where = {"data": "data", "communication": "communication"}.get(verdict.class_, "ranks")
    condition = [text for text in analysis.condition.sentences() if not verdict.sentence.startswith(text)]
    return [
        card("First of all", html.Ul([html.Li(clean(text)) for text in condition])) if condition else None,
        html.Section(
            [
                html.P(clean(title), className="soft"),
                html.P(clean(verdict.sentence), className="sentence", id="verdict-sentence"),
                html.P(["→ ", clean(verdict.remedy)], className="remedy") if verdict.remedy else None,
                html.P(f"Expected: {verdict.predicted_gain:.0%} less time a step.", className="gain")
                if verdict.predicted_gain
                else None,
                html.P(
                    [
                        link("Look closer", where, rank=guilty),
                        " · ",
                        link("See it on the timeline", "timeline", **place_of(analysis, verdict)),
                    ]
                ),
            ],
            className=style,
        ),
        plot(figures.anatomy(analysis, view.theme), "anatomy", _heading(view)) if analysis.facts.steps.count else None,
        html.Section(
            [
                html.H2("Findings, by expected gain"),
                html.Ol(
                    [
                        finding_card(finding, number, place_of(analysis, finding))
                        for number, finding in enumerate(shown)
                    ],
                    className="findings",
                )
                if shown
                else html.P("Nothing that is worth a change."),
            ],
            className="card",
        ),
        _what_if() if analysis.facts.steps.count and analysis.facts.breakdown.knows_compute else None,
        card("Notes", html.Ul([html.Li(clean(note)) for note in analysis.notes])) if analysis.notes else None,
    ]


def _heading(view: View) -> str:
    facts = view.analysis.facts
    return f"The mean step of every rank ({describe_steps(step_times(facts.steps, facts.breakdown))})"


def _what_if() -> Any:
    # A live page is made anew every second: what somebody has set stays.
    kept = {"persistence": True, "persistence_type": "memory"}
    marks = {0: "none", AS_IT_IS // 2: "half", AS_IT_IS: "as it is"}
    sliders = [
        html.Div(
            [html.Label(label, htmlFor=name), dcc.Slider(0, AS_IT_IS, 5, value=AS_IT_IS, marks=marks, id=name, **kept)],
            className="slider",
        )
        for name, label, _ in SLIDERS
    ]
    switches = dcc.Checklist(
        options=[
            {"label": " no stragglers", "value": "straggler=none"},
            {"label": " perfect overlap", "value": "overlap=perfect"},
            {"label": " no negotiation", "value": "negotiation=0"},
        ],
        value=[],
        id="what-if-switches",
        className="switches",
        **kept,
    )
    return card(
        "What if", html.Div(sliders, className="sliders"), switches, html.P(id="what-if-answer", className="gain")
    )
