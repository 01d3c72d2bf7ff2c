"""All lanes of all ranks, drawn by the modules in assets/timeline/ from what timeline/routes.py serves."""

from typing import Any

from dash import html

from . import View


def layout(view: View) -> Any:
    """The page; the state in the address is read by the script (assets/timeline/address.mjs)."""
    del view
    return frame()


def frame() -> Any:
    """The page, which is the same of every run."""
    return html.Section(
        [
            html.Div(_tools(), className="toolbar"),
            html.Div(_rows_tools(), className="toolbar"),
            html.P(id="timeline-focus", className="soft", role="status"),
            html.Div(
                id="timeline",
                tabIndex=0,
                role="application",
                **{
                    "aria-label": "timeline of all ranks; press ? for its keys",
                    "aria-describedby": "timeline-details",
                },
            ),
            html.Div(id="timeline-legend", className="legend"),
            html.Div(id="timeline-help"),
            html.Div(id="timeline-details", className="panel", **{"aria-live": "polite"}),
            html.Div(id="timeline-region", className="panel", **{"aria-live": "polite"}),
            html.Div(id="timeline-spans", className="panel"),
        ],
        className="card wide",
    )


def _button(name: str, label: str, tip: str) -> Any:
    return html.Button(label, id=f"timeline-{name}", title=tip, type="button", **{"aria-label": tip})


def _tools() -> list[Any]:
    return [
        _input(
            "query",
            "search: name, lane, tensor, args (/)",
            "search spans: part of a name, lane, tensor or args, or a /regular expression/",
        ),
        _button("previous", "◀", "previous match (shift+Enter)"),
        _button("next", "▶", "next match (Enter)"),
        html.Span(id="timeline-matches", className="soft", role="status"),
        _button("in", "+", "zoom in (W)"),
        _button("out", "-", "zoom out (S)"),
        _button("fit", "fit", "fit the chosen span, the region, or the run (F)"),
        _button("path", "critical path", "draw the critical path (C)"),
        _button("table", "spans", "a table of spans, longest first (T)"),
        _button("link", "copy link", "copy a link to this view (L)"),
        _button("perfetto", "open in Perfetto", "open the visible part in ui.perfetto.dev; nothing is uploaded"),
        _button("download", "download", "the visible part, as a Chrome trace"),
        _button("show-help", "?", "keys (?)"),
    ]


def _rows_tools() -> list[Any]:
    return [
        _input("filter", "filter lanes, or rank 3", "show only lanes that hold this text"),
        _choice(
            "sort",
            "order of ranks",
            {"": "ranks in order", "exposed": "most exposed first", "least": "least exposed first"},
        ),
        _choice(
            "beside",
            "what to draw below for comparison",
            {"": "nothing beside", "step": "a usual step beside", "run": "the other run beside"},
        ),
        _button("collapse", "collapse all", "collapse or open all ranks"),
    ]


# Controls whose value is the script's and no callback's are described here and made by it (panels.mjs): Dash's own would set
# them back whenever the page is made anew.


def _input(name: str, placeholder: str, tip: str) -> Any:
    return html.Div(**{"data-input": name, "data-label": tip, "data-placeholder": placeholder})


def _choice(name: str, tip: str, options: dict[str, str]) -> Any:
    return html.Div(
        **{"data-select": name, "data-label": tip, "data-options": "|".join(f"{k}={v}" for k, v in options.items())},
    )
