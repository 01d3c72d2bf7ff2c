"""The parts that pages are made of.  Everything that comes from a trace is handed over as text, never as markup."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from dash import dcc, html

from ..collector.reports.svg import to_svg
from ..timeline.commands.arguments import clean
from .words import headed

if TYPE_CHECKING:
    from ..collector.findings import Finding
    from ..collector.reports.figures import Figure

#: Names longer than this are cut in tables.
MAX_TEXT: Final = 160
#: Rows of a long table that are seen at once.
MAX_ROWS: Final = 12
#: Words of a cell that stay on one line; the table scrolls rather.
SHORT: Final = 32

Component = Any


def text(value: object) -> str:
    """A value from a trace, as text that shows."""
    shown = clean(str(value))
    return shown if len(shown) <= MAX_TEXT else shown[: MAX_TEXT // 2] + "…" + shown[-MAX_TEXT // 2 :]


def chart(figure: "Figure | None", label: str, words: str = "", chosen: str = "") -> Component:
    """A figure with its heading; nothing without a figure.

    Args:
        label: heading, which screen readers hear, too.
        words: how to read it.
        chosen: an address with `{at}`, `{from}` and `{to}`: where a click and a drag on the chart lead (assets/charts.js).
    """
    if figure is None:
        return None
    parts = [html.H2(label), _read(words), drawn(figure, label, chosen)]
    return html.Section(parts, className="card", **{"aria-label": label})


def drawn(figure: "Figure", label: str, chosen: str = "") -> Component:
    """A figure alone, as SVG."""
    more = {"data-svg": to_svg(figure, label), "aria-label": label, **({"data-chosen": chosen} if chosen else {})}
    return html.Div(className="scrolls", role="group", **more)


def _read(words: str) -> Component:
    return html.P(words, className="soft") if words else None


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], marked: Sequence[int] = ()) -> Component:
    """A small table; the first column is a label, numbers are right-aligned.

    Args:
        columns: their names, which are explained if they have a meaning (words.py).
        marked: numbers of the rows that stand out.
    """
    is_number = [
        bool(rows) and all(_looks_like_number(row[column]) for row in rows) if column else False
        for column in range(len(columns))
    ]
    head = html.Thead(
        html.Tr(
            [
                # A column of remarks has no name, and a heading without words says nothing.
                html.Th(name, className="number" if number else "", scope="col") if name else html.Td(className="short")
                for name, number in zip(headed(columns), is_number, strict=True)
            ]
        )
    )
    body = [
        html.Tr(
            [
                html.Td(cell if _is_component(cell) else text(cell), className=_kind_of(cell, number=number))
                for cell, number in zip(row, is_number, strict=True)
            ],
            className="marked" if place in marked else "",
        )
        for place, row in enumerate(rows)
    ]
    return html.Div(
        html.Table([head if any(columns) else None, html.Tbody(body)]),
        className="scrolls",
        role="group",
        **{"aria-label": "table"},
    )


def long_table(columns: Sequence[str], rows: Sequence[Sequence[object]], marked: Sequence[int] = ()) -> list[Component]:
    """A table whose first rows are what is looked for; many more are there on demand."""
    if len(rows) <= MAX_ROWS + MAX_ROWS // 4:
        return [table(columns, rows, marked)]
    rest = table(columns, rows[MAX_ROWS:], [place - MAX_ROWS for place in marked])
    more = html.Details([html.Summary(f"{len(rows) - MAX_ROWS} more"), rest], **{"data-key": f"more by {columns[0]}"})
    return [table(columns, rows[:MAX_ROWS], marked), more]


def _kind_of(cell: object, *, number: bool) -> str:
    return "number" if number else "short" if _is_component(cell) or len(str(cell)) <= SHORT else ""


def _is_component(value: object) -> bool:
    return hasattr(value, "to_plotly_json")


def _looks_like_number(value: object) -> bool:
    if _is_component(value):
        return False
    words = str(value).strip()
    return not words or words in {"-", "unknown"} or words.lstrip("+-≥<~").strip()[:1].isdigit()


def link(label: str, page: str, **query: object) -> Component:
    """A link within the dashboard."""
    return dcc.Link(label, href=address(page, **query))


def address(page: str, **query: object) -> str:
    """The address of a page in a certain state."""
    wanted = {name: value for name, value in query.items() if value not in {None, ""}}
    return f"/{page}" + (f"?{urlencode(wanted)}" if wanted else "")


def choices(
    label: str, page: str, key: str, options: Iterable[tuple[str, str]], chosen: str, **kept: object
) -> Component:
    """What can be chosen, as links: they are in the address, open without a callback and are reached by keyboard.

    Args:
        key: in the address.
        options: value and label; "" is what is shown at first.
        kept: the rest of the address.
    """
    links = [
        dcc.Link(
            text(shown),
            href=address(page, **{**kept, key: value}),
            className="choice here" if value == chosen else "choice",
            **({"title": "shown now"} if value == chosen else {}),
        )
        for value, shown in options
    ]
    return html.Nav([html.Span(label, className="soft"), *links], className="choices", **{"aria-label": label})


def card(heading: str, *children: Component) -> Component:
    """A part of a page."""
    return html.Section([html.H2(heading), *children], className="card", **{"aria-label": heading})


def empty(heading: str, said: str) -> Component:
    """What a page says that has nothing to show."""
    return html.Section([html.H2(heading), html.P(said)], className="card empty")


def finding_card(
    finding: "Finding", number: int, page: str, place: Mapping[str, object] | None = None, *, is_verdict: bool = False
) -> Component:
    """A finding: gain, sentence, remedy, and its evidence on demand.

    Args:
        page: where its numbers are.
        place: where on the timeline it can be seen (timeline/evidence.py).
        is_verdict: whether the page has said sentence and remedy already.
    """
    from ..collector.reports.evidence import evidence_rows  # noqa: PLC0415  loaded with the analysis

    low, high = finding.gain_interval
    evidence = evidence_rows(finding.evidence)
    key = f"{text(finding.cause)} {' '.join(map(str, finding.ranks))}"
    first = int(finding.ranks[0]) if len(finding.ranks) == 1 else None
    return html.Li(
        [
            html.Div(
                [
                    html.Span(f"{finding.predicted_gain:.0%}", className="gain"),
                    html.Span(
                        f" {gain_words(low, high)}  {text(finding.class_)}: {text(finding.cause)}", className="soft"
                    ),
                ]
            ),
            None if is_verdict else html.P(clean(finding.sentence)),
            None if is_verdict or not finding.remedy else html.P(["→ ", clean(finding.remedy)], className="remedy"),
            # A live page is made anew with new steps: by its key the script opens it again.
            html.Details([html.Summary("Evidence"), table(("what", "value"), evidence)], **{"data-key": key}),
            html.P(
                [
                    link("The numbers", page, rank=first),
                    *((" · ", link("See the evidence on the timeline", "timeline", **place)) if place else ()),
                ]
            ),
        ],
        className="finding",
        id=f"finding-{number}",
    )


def gain_words(low: float, high: float) -> str:
    """The interval of a gain; "" where it says nothing.

    >>> gain_words(0.27, 0.35), gain_words(0.0, 1.0)
    ('[27% to 35%]', '')
    """
    return f"[{low:.0%} to {high:.0%}]" if high - low < 0.9 else ""  # noqa: PLR2004  anything between nothing and all
