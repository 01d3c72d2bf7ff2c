"""All lanes of all ranks, drawn by the modules in assets/timeline/ from what timeline/routes.py serves."""

from typing import Any

from dash import dcc, html

from . import View


def layout(view: View) -> Any:
    """The page; the state in the address (step, rank, from, to, q) is read by the script."""
    del view

    def button(name: str, label: str, tip: str) -> Any:
        return html.Button(label, id=f"timeline-{name}", title=tip, type="button")

    return html.Section(
        [
            html.Div(
                [
                    dcc.Input(id="timeline-query", placeholder="search names ( / ), or /a regex/", debounce=False),
                    button("previous", "◀", "previous match (shift+N)"),
                    button("next", "▶", "next match (N)"),
                    html.Span(id="timeline-matches", className="soft"),
                    button("in", "+", "zoom in (W)"),
                    button("out", "-", "zoom out (S)"),
                    button("fit", "all", "the whole run (0)"),
                    button(
                        "perfetto",
                        "open in Perfetto",
                        "hand what is on the screen to ui.perfetto.dev; nothing is uploaded",
                    ),
                    button("download", "download", "what is on the screen, as a Chrome trace"),
                ],
                className="toolbar",
            ),
            html.Div(id="timeline", tabIndex=0, role="img", **{"aria-label": "timeline of all ranks"}),
            html.Pre(id="timeline-details", className="details"),
        ],
        className="card wide",
    )
