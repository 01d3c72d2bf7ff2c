"""What devices do and why they are idle; counters of devices, processors, memory and network."""

from typing import Any, Final

from dash import html

from ...collector.reports import figures_device
from ...collector.reports.device import device_tables
from ..components import card, chart, drawn, empty, table, text
from ..words import explain
from . import View

MAX_PLOTS: Final = 36


def layout(view: View) -> Any:
    """The page."""
    device = view.summary.device
    counters = figures_device.counters(view.analysis, view.theme) if len(view.analysis.trace.counters) else ()
    if device is None and not counters:
        return empty(
            "Devices",
            "This trace has no counters. The runtime records them once a second (HOROVOD_TIMELINE and tl-run).",
        )
    moving = [item for item in counters if item.figure is not None][:MAX_PLOTS]
    still = [item for item in counters if item not in moving]
    of_what = "a mean step" if device is None or device.has_steps else "the recording, which has no steps"
    return [
        chart(
            figures_device.busy(device, view.theme) if device is not None else None,
            f"Busy and idle: every device in {of_what}",
            "Grey is idle, by what the host does meanwhile.",
        ),
        html.Div([card(text(item.title), table(item.header, item.rows)) for item in device_tables(device)])
        if device is not None
        else None,
        html.Section(
            [
                html.H2("Counters that move"),
                html.P("Every second step is shaded.", className="soft"),
                html.Div([_small(item) for item in moving], className="multiples"),
            ],
            className="card",
            **{"aria-label": "counters"},
        )
        if moving
        else None,
        card(
            "Counters that stand still, or have too few samples",
            table(("counter", "value"), [(i.name, i.words) for i in still]),
        )
        if still
        else None,
        explain("idle", "launch", "starved", "exposed", "step"),
    ]


def _small(item: figures_device.Small) -> Any:
    assert item.figure is not None
    label = f"{item.name}, {item.unit}" if item.unit else item.name
    return html.Figure([html.Figcaption(text(label)), drawn(item.figure, f"{text(label)}: {item.words}")])
