"""The application: frame, navigation, and one callback that shows the page that the address names."""

from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

from dash import Dash, Input, Output, State, dcc, html, no_update

from ..collector.model.words import milliseconds
from ..collector.predict.what_if import predict
from ..collector.service.compression import compress_answers
from ..collector.service.guard import protect
from ..timeline.commands import clean
from ..timeline.errors import TlkitError
from .components import address, empty
from .manners import add_manners
from .pages import Page, View, communication, compare, data, devices, ranks, steps, timeline, verdict
from .run_header import describe_run
from .source import Source
from .timeline import routes

#: Pages by address, in the order of the navigation; the number is the key that opens it.
PAGES: Final[dict[str, tuple[str, Page]]] = {
    "verdict": ("Verdict", verdict.layout),
    "steps": ("Steps", steps.layout),
    "ranks": ("Ranks", ranks.layout),
    "communication": ("Communication", communication.layout),
    "data": ("Data", data.layout),
    "devices": ("Devices", devices.layout),
    "timeline": ("Timeline", timeline.layout),
    "compare": ("Compare", compare.layout),
}
#: How often a live page asks whether there is something new, ms.
REFRESH_MS: Final = 1000
#: Longer addresses are nobody's.
MOST_QUERY: Final = 2000


#: Dash's own page says neither its language nor how wide it wants to be.
_INDEX: Final = """<!DOCTYPE html>
<html lang="en">
<head>{%metas%}<title>{%title%}</title>{%favicon%}{%css%}</head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body>
</html>"""


def create_app(source: Source, *, host: str = "127.0.0.1", token: str | None = None) -> Dash:
    """The dashboard of `source`, ready to be served.

    Args:
        host: the address that it will listen at.
        token: what visitors need beyond loopback.
    """
    app = Dash(
        "tlkit.dashboard",
        assets_folder=str(Path(__file__).with_name("assets")),
        assets_path_ignore=["^timeline$"],  # modules: the page that needs them loads them
        title="tlkit",
        update_title="",
        suppress_callback_exceptions=True,
        serve_locally=True,
        index_string=_INDEX,
    )
    app.layout = lambda: _frame(source)
    routes.add_routes(app.server, source, host=host)
    _add_callbacks(app, source)

    protect(app.server, host=host, token=token, cookie="tlkit_token", script_hashes=app.csp_hashes())
    add_manners(app, PAGES)
    compress_answers(app.server, files=("/_dash-component-suites/", "/assets/"))
    return app


def _frame(source: Source) -> Any:
    """What all pages share."""
    return html.Div(
        [
            dcc.Location(id="address", refresh="callback-nav"),
            dcc.Store(id="theme", storage_type="local"),
            dcc.Store(id="version", data=source.version),
            dcc.Interval(id="tick", interval=REFRESH_MS, disabled=not source.is_live),
            html.Header(
                [
                    html.H1("tlkit"),
                    html.Nav(
                        [
                            dcc.Link(label, href=address(name), id=f"to-{name}", title=f"key {number}")
                            for number, (name, (label, _)) in enumerate(PAGES.items(), start=1)
                        ]
                    ),
                    html.Span(clean(source.status), id="status", className="soft", role="status"),
                    html.Button("dark", id="theme-switch", title="dark or light (D)", type="button"),
                    html.P(describe_run(source.analysis), id="run", className="soft"),
                ]
            ),
            dcc.Loading(html.Main(id="page"), delay_show=400, type="dot"),
        ],
        id="frame",
    )


def _add_callbacks(app: Dash, source: Source) -> None:
    @app.callback(
        Output("page", "children"),
        Input("address", "pathname"),
        Input("address", "search"),
        Input("theme", "data"),
        Input("version", "data"),
        State("page", "children"),
    )
    def show(path: str | None, search: str | None, theme: str | None, _version: int, shown: Any) -> Any:
        name = (path or "/").strip("/") or "verdict"
        if name == "timeline" and shown and _is_timeline(shown):
            return no_update  # the script follows the address and the version by itself
        return page(source, name, search or "", theme or "light")

    # What has not changed is not sent: a page that is made anew closes what somebody has opened, and loses their zoom.
    @app.callback(
        Output("version", "data"),
        Output("status", "children"),
        Output("run", "children"),
        Input("tick", "n_intervals"),
        State("version", "data"),
        State("status", "children"),
        State("run", "children"),
        prevent_initial_call=True,
    )
    def tick(_: int, version: int | None, status: str | None, run: str | None) -> tuple[Any, Any, Any]:
        now = (source.version, clean(source.status), describe_run(source.analysis))
        return only_changes(now, (version, status or "", run or ""))

    @app.callback(
        Output("what-if-answer", "children"),
        [Input(name, "value") for name, _, _ in verdict.SLIDERS],
        Input("what-if-switches", "value"),
    )
    def what_if(*values: Any) -> str:
        *amounts, switches = values
        changes = [
            make(max(int(amount), 0))
            for (_, _, make), amount in zip(verdict.SLIDERS, amounts, strict=True)
            if isinstance(amount, (int, float)) and amount < verdict.AS_IT_IS
        ]
        return predicted(source, [*changes, *map(str, switches if isinstance(switches, list) else [])])

    # A dropdown that has just come onto the page says its value, too: only what differs from the address is a choice.
    @app.callback(
        Output("address", "search", allow_duplicate=True),
        Input("steps-rank", "value"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def choose_rank(rank: str | None, search: str | None) -> Any:
        if (rank or "") == asked(search).get("rank", ""):
            return no_update
        return f"?rank={int(rank)}" if rank and rank.isdigit() else ""

    @app.callback(
        Output("address", "search", allow_duplicate=True),
        Input("ranks-what", "value"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def choose_what(what: str | None, search: str | None) -> Any:
        if not what or what == asked(search).get("what", ranks.DEFAULT):
            return no_update
        return address("", what=what).removeprefix("/")

    @app.callback(
        Output("address", "href", allow_duplicate=True),
        Input("steps-over-time", "clickData"),
        prevent_initial_call=True,
    )
    def open_step(clicked: Any) -> Any:
        points = (clicked or {}).get("points") or []
        return address("timeline", step=int(points[0]["x"])) if points else no_update

    app.clientside_callback(
        "function(path, run) { return window.tlkit.setTitle(path, run); }",
        Output("run", "title"),
        Input("address", "pathname"),
        Input("run", "children"),
    )
    app.clientside_callback(
        "function(clicks, theme) { return window.tlkit.switchTheme(clicks, theme); }",
        Output("theme", "data"),
        Input("theme-switch", "n_clicks"),
        State("theme", "data"),
    )


def only_changes(now: tuple[Any, ...], before: tuple[Any, ...]) -> tuple[Any, ...]:
    """Values for outputs of which those that are as before are left alone."""
    return tuple(no_update if value == known else value for value, known in zip(now, before, strict=True))


def _is_timeline(shown: Any) -> bool:
    return isinstance(shown, dict) and "wide" in str(shown.get("props", {}).get("className", ""))


def asked(search: str | None) -> dict[str, str]:
    """What the address asks for beside the page."""
    try:
        return dict(parse_qsl((search or "").removeprefix("?")[:MOST_QUERY], max_num_fields=20))
    except ValueError:
        return {}


def page(source: Source, name: str, search: str, theme: str) -> Any:
    """A page's content, whatever goes wrong with it."""
    if name not in PAGES:
        return empty("There is no such page", f"Choose one of {', '.join(PAGES)}.")
    if source.analysis is None:
        return empty("Nothing to show yet", clean(source.status) or "Nothing has been recorded yet.")
    query = dict(parse_qsl(search.removeprefix("?")[:MOST_QUERY], max_num_fields=20))
    source.prepare()
    view = View(source.analysis, source, "dark" if theme == "dark" else "light", query)
    try:
        return PAGES[name][1](view)
    except TlkitError as error:
        return empty(PAGES[name][0], clean(str(error)))


def predicted(source: Source, changes: list[str]) -> str:
    """The answer to the sliders, in words."""
    if source.analysis is None or not changes:
        return "Move a slider to see what a step would take."
    try:
        found = predict(source.analysis.facts, changes)
    except TlkitError as error:
        return clean(str(error))
    now, then = milliseconds(found.step_ns), milliseconds(found.predicted_ns)
    return f"A step would take {then} instead of {now}: {found.gain:.0%} less."
