"""The application: frame, navigation, and one callback that shows the page that the address names."""

import json
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

from dash import Dash, Input, Output, State, dcc, html, no_update, set_props
from dash.exceptions import PreventUpdate

from ..collector.predict.controls import AS_IT_IS, SLIDERS, changes_of, predict_in_words
from ..collector.service.compression import compress_answers
from ..collector.service.guard import protect
from ..timeline.commands.arguments import clean
from ..timeline.errors import TlkitError
from ..timeline.vocabulary import LaneKind
from .blocks import as_sent, changed, contain, describe
from .components import address, empty
from .first_screen import THEMES, FirstScreen
from .manners import add_manners
from .pages import Page, View
from .run_header import describe_pulse, describe_run
from .source import Source
from .timeline import routes

#: Pages by address, in the order of the navigation; the number is the key that opens it.
PAGES: Final = {
    "verdict": "Verdict",
    "steps": "Steps",
    "ranks": "Ranks",
    "communication": "Communication",
    "data": "Data",
    "devices": "Devices",
    "timeline": "Timeline",
    "compare": "Compare",
}
#: How often a live page asks whether there is something new, ms; and one that has nothing to show yet.
REFRESH_MS: Final = 1000
OPENING_MS: Final = 500
#: Of the address: where the sliders stand, of which a kept first screen knows nothing (pages/verdict.py has the same name).
_CONTROLS: Final = "what-if"
#: Longer addresses are nobody's.
MAX_QUERY: Final = 2000


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
            dcc.Store(id="shape"),
            dcc.Interval(id="tick", interval=_refresh_ms(source), disabled=not source.is_growing),
            html.A("to the page", href="#page", className="skip"),
            html.Header(
                [
                    html.H1("tlkit"),
                    html.Nav(_links(source), id="pages", **{"aria-label": "pages"}),
                    html.Span(clean(source.status), id="status", className="soft", role="status"),
                    html.Span(id="pulse", className="soft"),
                    *_dump_button(source),
                    html.Button("dark", id="theme-switch", title="dark or light (K)", type="button"),
                    *_dump_answer(source),
                    html.P(_run_words(source), id="run", className="soft"),
                ]
            ),
            # Only while another page is made: whoever holds a slider keeps it while its answer is awaited.
            dcc.Loading(
                html.Main(id="page", tabIndex=-1), delay_show=400, type="dot", target_components={"page": "children"}
            ),
        ],
        id="frame",
    )


def _refresh_ms(source: Source) -> int:
    return OPENING_MS if source.opening is not None and source.first is None else REFRESH_MS


def _dump_button(source: Source) -> list[Any]:
    """Asks the ranks for what their flight recorders have, where there is somebody to ask."""
    if source.ask_dump is None:
        return []
    title = "have the flight recorders of all ranks set aside their newest steps"
    return [html.Button("set aside", id="dump", title=title, type="button", n_clicks=0)]


def _dump_answer(source: Source) -> list[Any]:
    """What has become of it, behind the buttons, which stay where they are."""
    return [] if source.ask_dump is None else [html.Span(id="dump-answer", className="soft", role="status")]


def _links(source: Source) -> list[Any]:
    """The pages that have something to show."""
    there = pages_of(source)
    return [
        dcc.Link(PAGES[name], href=address(name), id=f"to-{name}", title=f"key {number}")
        for number, name in enumerate(there, start=1)
    ]


def pages_of(source: Source) -> tuple[str, ...]:
    """Names of the pages with content; all are served, and say what is missing."""
    first, analysis = source.first, source.analysis
    if first is not None:
        return tuple(name for name in PAGES if name in first.pages or (name == "compare" and source.others()))
    if analysis is None:
        return ("verdict", "timeline")
    has = {
        "verdict": True,
        "steps": analysis.facts.steps.count > 0,
        "ranks": source.summary().slow_rank is not None,
        "communication": not analysis.collectives.empty,
        "data": _has_lanes(analysis.trace.spans["lane_kind"].cat, LaneKind.DATA, LaneKind.WORKER),
        "devices": analysis.device is not None or not analysis.trace.counters.empty,
        "timeline": True,
        "compare": bool(source.others()),
    }
    return tuple(name for name in PAGES if has[name])


def _has_lanes(kinds: Any, *wanted: LaneKind) -> bool:
    """Whether a column has any of these kinds: compared as bytes, since every page asks, of millions of spans too."""
    codes = kinds.codes.to_numpy()
    return any(bool((codes == number).any()) for number, kind in enumerate(kinds.categories) if kind in set(wanted))


def _add_callbacks(app: Dash, source: Source) -> None:
    @app.callback(
        Output("page", "children"),
        Output("shape", "data"),
        Input("address", "pathname"),
        Input("address", "search"),
        Input("theme", "data"),
        State("shape", "data"),
    )
    def show(path: str | None, search: str | None, theme: str | None, shape: object) -> Any:
        name, key = _page_key(path, search, theme)
        if name == "timeline" and isinstance(shape, dict) and shape.get("key") == key:
            return no_update, no_update  # the script follows the address by itself
        if name not in {"verdict", "timeline"} or _CONTROLS in asked(search):
            source.wait()
        blocks = _blocks(source, name, search, theme)
        return (contain(key, blocks) if source.is_growing else blocks), describe(key, blocks)

    # Apart from `show`, whose output is the whole page: what it is about to replace hides while it is made.
    @app.callback(
        Output("shape", "data", allow_duplicate=True),
        Input("version", "data"),
        State("address", "pathname"),
        State("address", "search"),
        State("theme", "data"),
        State("shape", "data"),
        prevent_initial_call=True,
    )
    def renew(version: int | None, path: str | None, search: str | None, theme: str | None, shape: object) -> Any:
        name, key = _page_key(path, search, theme)
        if version is None:
            raise PreventUpdate
        if not isinstance(shape, dict) or shape.get("key") != key:
            # Somebody goes to another page just now, of which `show` may have had the version before: again with the next tick.
            set_props("version", {"data": None})
            set_props("tick", {"disabled": False})
            raise PreventUpdate
        blocks = _blocks(source, name, search, theme)
        news = changed(shape, key, blocks)
        for container, block in ({"page": contain(key, blocks)} if news is None else news).items():
            set_props(container, {"children": block})
        return describe(key, blocks)

    # What has not changed is not sent: a page that is made anew closes what somebody has opened, and loses their zoom.
    @app.callback(
        Output("version", "data"),
        Output("status", "children"),
        Output("run", "children"),
        Output("pages", "children"),
        Output("pulse", "children"),
        Output("tick", "disabled"),
        Input("tick", "n_intervals"),
        State("version", "data"),
        State("status", "children"),
        State("run", "children"),
        State("pulse", "children"),
        prevent_initial_call=True,
    )
    def tick(_: int, version: int | None, status: str | None, run: str | None, pulse: str | None) -> tuple[Any, ...]:
        now = (
            source.version,
            clean(source.status),
            _run_words(source),
            describe_pulse(source.analysis, time.time_ns()) if source.is_live else "",
        )
        new_version, new_status, new_run, new_pulse = only_changes(now, (version, status or "", run or "", pulse or ""))
        new_links = no_update if new_version is no_update else _links(source)
        # The last version has arrived, and no other one will come.
        is_last = new_version is no_update and not source.is_growing
        return new_version, new_status, new_run, new_links, new_pulse, True if is_last else no_update

    @app.callback(
        Output("what-if-answer", "children"),
        [Input(f"what-if-{slider.name}", "value") for slider in SLIDERS],
        Input("what-if-switches", "value"),
        Input("version", "data"),
    )
    def what_if(*values: Any) -> str:
        *amounts, switches, _version = values
        percents = {
            slider.name: max(amount, 0)
            for slider, amount in zip(SLIDERS, amounts, strict=True)
            if isinstance(amount, (int, float))
        }
        return predicted(source, changes_of(percents, list(map(str, switches)) if isinstance(switches, list) else []))

    names = json.dumps([slider.name for slider in SLIDERS])
    app.clientside_callback(
        f"function(...values) {{ return window.tlkit.keepControls({names}, {AS_IT_IS}, values); }}",
        [Input(f"what-if-{slider.name}", "value") for slider in SLIDERS],
        Input("what-if-switches", "value"),
    )
    if source.ask_dump is not None:
        app.callback(Output("dump-answer", "children"), Input("dump", "n_clicks"), prevent_initial_call=True)(
            lambda clicks: asked_dump(source, clicks)
        )

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


def _page_key(path: str | None, search: str | None, theme: str | None) -> tuple[str, str]:
    """The page's name, and what names its state; the timeline's state is its script's."""
    name = (path or "/").strip("/") or "verdict"
    return name, name if name == "timeline" else f"{name}{search or ''}#{theme or ''}"


def _blocks(source: Source, name: str, search: str | None, theme: str | None) -> list[Any]:
    made = page(source, name, search or "", theme or "light")
    return made if isinstance(made, list) else [made]


def only_changes(now: tuple[Any, ...], before: tuple[Any, ...]) -> tuple[Any, ...]:
    """Values for outputs of which those that are as before are left alone."""
    return tuple(no_update if value == known else value for value, known in zip(now, before, strict=True))


def asked(search: str | None) -> dict[str, str]:
    """What the address asks for beside the page."""
    try:
        return dict(parse_qsl((search or "").removeprefix("?")[:MAX_QUERY], max_num_fields=20))
    except ValueError:
        return {}


def page(source: Source, name: str, search: str, theme: str) -> Any:
    """A page's content, whatever goes wrong with it."""
    if name not in PAGES:
        return empty("There is no such page", f"Choose one of {', '.join(PAGES)}.")
    early = _before_opened(source, name, search, theme)
    if early is not None:
        return early
    opening, analysis = source.opening, source.analysis
    if opening is not None:
        return opening.blocks()
    if analysis is None:
        return empty("Nothing to show yet", clean(source.status) or "Nothing has been recorded yet.")
    source.prepare()
    view = View(analysis, source, source.summary(), "dark" if theme == "dark" else "light", asked(search))
    try:
        return _layout_of(name)(view)
    except (LookupError, TlkitError) as error:
        return empty(PAGES[name], clean(str(error)))


def _before_opened(source: Source, name: str, search: str, theme: str) -> Any:
    """What can be shown without the run, if its first screen was kept; of the timeline also when the run is there.  Else None."""
    first, opening = source.first, source.opening
    if first is not None and opening is not None and name == "verdict" and _CONTROLS not in asked(search):
        opening.begin_soon()
        return first.blocks["dark" if theme == "dark" else "light"]
    if name == "timeline" and (first is not None or source.analysis is not None):
        # The page is the same of every run: its script is loaded, and asks for what it draws, while that is made.
        source.begin_run()
        return import_module(f"{__package__}.pages.timeline").frame()
    return None


def first_screen(source: Source) -> FirstScreen:
    """The first screen of a run that has been opened, to be kept.

    Raises:
        LookupError: there is nothing to show yet.
    """
    if source.analysis is None:
        raise LookupError("nothing has been recorded yet")
    return FirstScreen(
        run=describe_run(source.analysis),
        pages=tuple(name for name in pages_of(source) if name != "compare"),  # which other runs there are changes
        files=source.analysis.trace.meta.files,
        blocks={theme: as_sent(_blocks(source, "verdict", "", theme)) for theme in THEMES},
    )


def _run_words(source: Source) -> str:
    first = source.first
    return describe_run(source.analysis) if first is None else first.run


def _layout_of(name: str) -> Page:
    """The module in pages/ of this name; loaded when it is first asked for, which the first screen does not wait for."""
    layout: Page = import_module(f"{__package__}.pages.{name}").layout
    return layout


def asked_dump(source: Source, clicks: object) -> str:
    """The answer to the button that asks the flight recorders for what they have."""
    if source.ask_dump is None or not isinstance(clicks, int) or clicks < 1:
        raise PreventUpdate
    try:
        return clean(source.ask_dump())
    except (OSError, TlkitError) as error:
        return clean(str(error))


def predicted(source: Source, changes: list[str]) -> str:
    """The step time after the changes that the sliders ask for, in words."""
    return clean(predict_in_words(None if source.analysis is None else source.analysis.facts, changes))
