"""The parts that pages are made of.  Everything that comes from a trace is handed over as text, never as markup."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from dash import dcc, html

from ..collector.findings import Finding
from ..collector.reports.figures import PLOT_CONFIG, Figure
from ..timeline.commands import clean

#: Names longer than this are cut in tables.
MOST_TEXT: Final = 160

Component = Any


def text(value: object) -> str:
    """A value from a trace, as text that shows."""
    shown = clean(str(value))
    return shown if len(shown) <= MOST_TEXT else shown[: MOST_TEXT // 2] + "…" + shown[-MOST_TEXT // 2 :]


def plot(figure: Figure, name: str, label: str) -> Component:
    """A figure with its heading.

    Args:
        name: id of the graph.
        label: heading, which screen readers hear, too.
    """
    height = figure["layout"].get("height", 360)
    graph = dcc.Graph(id=name, figure=figure, config=PLOT_CONFIG, style={"height": f"{height}px"}, responsive=True)
    return html.Section([html.H2(label), graph], className="card", **{"aria-label": label})


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], marked: Sequence[int] = ()) -> Component:
    """A small table; the first column is a label, the others are numbers.

    Args:
        marked: numbers of the rows that stand out.
    """
    head = html.Thead(html.Tr([html.Th(name) for name in columns]))
    body = [
        html.Tr(
            [html.Td(cell if _is_component(cell) else text(cell)) for cell in row],
            className="marked" if number in marked else "",
        )
        for number, row in enumerate(rows)
    ]
    return html.Div(html.Table([head, html.Tbody(body)]), className="scrolls")


def _is_component(value: object) -> bool:
    return hasattr(value, "to_plotly_json")


def link(label: str, page: str, **query: object) -> Component:
    """A link within the dashboard."""
    return dcc.Link(label, href=address(page, **query))


def address(page: str, **query: object) -> str:
    """The address of a page in a certain state."""
    wanted = {name: value for name, value in query.items() if value is not None}
    return f"/{page}" + (f"?{urlencode(wanted)}" if wanted else "")


def card(heading: str, *children: Component) -> Component:
    """A part of a page."""
    return html.Section([html.H2(heading), *children], className="card")


def empty(heading: str, said: str) -> Component:
    """What a page says that has nothing to show."""
    return html.Section([html.H2(heading), html.P(said)], className="card empty")


def finding_card(finding: Finding, number: int, place: Mapping[str, object] | None = None) -> Component:
    """A finding: gain, sentence, remedy, and its evidence on demand.

    Args:
        place: where on the timeline it can be seen (timeline/evidence.py).
    """
    low, high = finding.gain_interval
    evidence = [(name, value) for name, value in finding.evidence.items()]
    key = f"{text(finding.cause)} {' '.join(map(str, finding.ranks))}"
    return html.Li(
        [
            html.Div(
                [
                    html.Span(f"{finding.predicted_gain:.0%}", className="gain"),
                    html.Span(
                        f" [{low:.0%} to {high:.0%}]  {text(finding.class_)}: {text(finding.cause)}", className="soft"
                    ),
                ]
            ),
            html.P(clean(finding.sentence)),
            html.P(["→ ", clean(finding.remedy)], className="remedy") if finding.remedy else None,
            html.P(link("See the evidence on the timeline", "timeline", **place)) if place else None,
            # A live page is made anew every second: by its key the script opens it again.
            html.Details([html.Summary("Evidence"), table(("what", "value"), evidence)], **{"data-key": key}),
        ],
        className="finding",
        id=f"finding-{number}",
    )
