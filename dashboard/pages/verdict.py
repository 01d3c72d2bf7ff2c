"""The first screen: the sentence, what it is worth, the plan, where the step time goes, and what would help."""

from typing import Any, Final

from dash import dcc, html

from ...collector.findings import Finding
from ...collector.model.words import milliseconds
from ...collector.predict.controls import AS_IT_IS, SLIDERS, SWITCHES, changes_of, from_address, predict_in_words
from ...collector.reports import figures, figures_ranks
from ...collector.reports.summary import CODE_TITLE, describe_steps, title_of
from ...timeline.commands.arguments import clean
from ...timeline.vocabulary import LaneKind
from ..components import card, chart, finding_card, link, table
from ..timeline.evidence import place_of
from ..words import explain
from . import View

#: Of the address: where the sliders and switches stand.
CONTROLS: Final = "what-if"
#: Steps of the plan that are shown.
MAX_PLAN: Final = 5


def layout(view: View) -> Any:
    """The page."""
    summary, facts = view.summary, view.analysis.facts
    has_steps = facts.steps.count > 0
    return [
        card("First of all", html.Ul([html.Li(clean(words)) for words in summary.shown_condition]))
        if summary.shown_condition
        else None,
        _verdict(view),
        _plan(view),
        _steps(view) if has_steps else None,
        chart(
            figures_ranks.waterfall(summary, view.theme),
            f"Rank {summary.slow_rank} beside a typical rank",
            "From the own work of the median of the other ranks to that of the slowest one: orange is longer, blue is shorter.",
        ),
        chart(figures.anatomy(view.analysis, view.theme), figures.anatomy_title(view.analysis)) if has_steps else None,
        _code(view),
        _findings(view),
        what_if(view) if has_steps and facts.breakdown.knows_compute else None,
        card("Notes", html.Ul([html.Li(clean(note)) for note in summary.notes])) if summary.notes else None,
        explain("own work", "exposed", "negotiate", "queue", "collective", "typical rank", "interval", "p95"),
    ]


def _steps(view: View) -> Any:
    """Step time over the run; a few steps one by one."""
    times = view.summary.steps
    heading = f"Step time over the run ({describe_steps(times)})"
    figure = figures.strip(view.analysis, view.theme)
    if figure is not None:
        return chart(figure, heading)
    numbers = view.analysis.facts.steps.numbers.tolist()
    rows = [
        (link(f"step {number}", "steps", step=number), milliseconds(float(took)))
        for number, took in zip(numbers, times.durations_ns, strict=True)
    ]
    return card(heading, table(("step", "time"), rows))


def _verdict(view: View) -> Any:
    verdict = view.summary.verdict
    style = {"healthy": "verdict healthy", "unknown": "verdict unknown"}.get(verdict.class_, "verdict")
    guilty = verdict.ranks[0] if len(verdict.ranks) == 1 else None
    where = _page_of(view, verdict)
    return html.Section(
        [
            html.P(clean(title_of(verdict)), className="soft"),
            html.H2(clean(verdict.sentence), className="sentence", id="verdict-sentence"),
            html.P(["→ ", clean(verdict.remedy)], className="remedy") if verdict.remedy else None,
            html.P(f"Expected: {verdict.predicted_gain:.0%} less time a step.", className="gain")
            if verdict.predicted_gain
            else None,
            html.P(
                [
                    link("Look closer", where, rank=guilty),
                    " · ",
                    link("See it on the timeline", "timeline", **place_of(view.analysis, verdict)),
                ]
            ),
        ],
        className=style,
        **{"aria-label": "verdict"},
    )


def _plan(view: View) -> Any:
    """From the mean step as it is to what is left when everything has been changed that is worth it."""
    plan = view.summary.plan[:MAX_PLAN]
    if not plan:
        return None
    now = html.Li([html.Strong(milliseconds(view.summary.steps.mean_ns)), html.Span("now", className="soft")])
    steps = [
        html.Li(
            [
                html.Strong(milliseconds(step.step_ns)),
                html.Span(clean(step.finding.remedy or step.finding.sentence), className="soft"),
            ]
        )
        for step in plan
    ]
    return card("The plan: what a step takes after each change", html.Ol([now, *steps], className="plan"))


def _findings(view: View) -> Any:
    summary = view.summary
    shown = summary.shown_findings
    return html.Section(
        [
            html.H2("Findings, by expected gain"),
            html.Ol(
                [
                    finding_card(
                        finding,
                        number,
                        _page_of(view, finding),
                        place_of(view.analysis, finding),
                        is_verdict=finding.sentence == summary.verdict.sentence,
                    )
                    for number, finding in enumerate(shown)
                ],
                className="findings",
            )
            if shown
            else html.P(_nothing(view)),
        ],
        className="card",
        **{"aria-label": "findings"},
    )


def _code(view: View) -> Any:
    """The lines of the training script that take most."""
    rows = [
        (
            clean(row.line),
            clean(row.function),
            clean(row.place.text),
            row.part,
            row.times,
            milliseconds(row.place.mean_ns),
            f"{row.place.share:.1%}",
        )
        for row in view.summary.code
    ]
    return (
        card(CODE_TITLE, table(("line", "function", "text", "part", "times", "mean", "share"), rows)) if rows else None
    )


def _page_of(view: View, finding: Finding) -> str:
    """The page that has a finding's numbers, of those that this run has."""
    analysis = view.analysis
    rest = "steps" if analysis.facts.steps.count else "timeline" if analysis.device is None else "devices"
    communication = rest if analysis.collectives.empty else "communication"
    if finding.class_ == "data":
        loading = analysis.trace.spans["lane_kind"].isin([str(LaneKind.DATA), str(LaneKind.WORKER)])
        return "data" if loading.any() else rest if analysis.device is None else "devices"
    if finding.class_ == "straggler":
        return communication if view.summary.slow_rank is None else "ranks"
    return communication if finding.class_ == "communication" else rest


def _nothing(view: View) -> str:
    """What to say where no finding promises a gain."""
    if view.analysis.facts.steps.count or view.summary.verdict.class_ == "healthy":
        return "Nothing that is worth a change."
    return "What changes would gain is unknown: this recording has no steps."


def what_if(view: View) -> Any:
    """The sliders, as the address has them: the same whatever comes, so that a live page leaves them alone (blocks.py)."""
    percents, switched = from_address(view.query.get(CONTROLS, ""))
    kept = {"persistence": True, "persistence_type": "memory"}
    marks = {0: "none", AS_IT_IS // 2: "half", AS_IT_IS: "as it is"}
    sliders = [
        html.Div(
            [
                html.Span(slider.label, id=f"what-if-{slider.name}-label"),
                dcc.Slider(
                    0,
                    AS_IT_IS,
                    5,
                    value=percents.get(slider.name, AS_IT_IS),
                    marks=marks,
                    id=f"what-if-{slider.name}",
                    allow_direct_input=False,
                    **kept,
                ),
            ],
            className="slider",
        )
        for slider in SLIDERS
    ]
    switches = dcc.Checklist(
        options=[{"label": f" {label}", "value": change} for label, change in SWITCHES],
        value=switched,
        id="what-if-switches",
        className="switches",
        **kept,
    )
    # With what it says at first: a page that comes by itself once its run has been opened has nobody ask for it.
    facts = None if view.source.is_live else view.analysis.facts
    said = predict_in_words(facts, changes_of(percents, switched))
    answer = html.P(clean(said), id="what-if-answer", className="gain", role="status")
    return html.Section(
        [html.H2("What if"), html.Div(sliders, className="sliders"), switches, answer],
        className="card",
        id="what-if",
        **{"aria-label": "what if"},
    )
