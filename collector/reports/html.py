"""The report as one file that any browser opens without a network: text first, then plots."""

import html
import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ...timeline.commands import clean
from ...timeline.errors import UsageError
from ..analysis import Analysis
from ..findings import Finding
from ..model.words import milliseconds
from ..predict.what_if import Prediction
from . import figures
from .report import step_durations

#: Nothing may be sent anywhere, and nobody is invited to.
PLOT_CONFIG: Final = {"displaylogo": False, "showSendToCloud": False, "plotlyServerURL": "", "responsive": True}

_STYLE: Final = """
:root { color-scheme: light; --text: #1F2933; --soft: #52606D; --paper: #FFFFFF; --bad: #B23A00; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--paper); max-width: 1080px; margin: 0 auto;
  padding: 24px; overflow-wrap: anywhere; }
h1 { font-size: 20px; } h2 { font-size: 16px; margin-top: 32px; }
.soft { color: var(--soft); } .verdict { border: 2px solid var(--bad); border-radius: 8px; padding: 16px 20px; }
.verdict.healthy { border-color: #009E73; } .verdict p { margin: 6px 0; }
.verdict .sentence { font-size: 18px; font-weight: 600; }
ol.findings li { margin-bottom: 12px; } .gain { font-weight: 600; } pre { white-space: pre-wrap; }
table { border-collapse: collapse; } td { padding: 2px 12px 2px 0; text-align: right; } td:first-child { text-align: left; }
"""

_SECTIONS: Final = (
    ("The mean step of every rank", "anatomy"),
    ("Steps over the run", "steps"),
    ("What holds the steps: the critical path", "path"),
    ("Own work of every rank over the run", "ranks"),
    ("Collectives: size and bus bandwidth", "collectives"),
)


def to_html(analysis: Analysis, predictions: Sequence[Prediction] = ()) -> str:
    """The whole report, plots and the program that draws them included (about 5 MB).

    Raises:
        UsageError: Plotly, whose JavaScript it takes along, is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs  # noqa: PLC0415  only this report needs it
    except ImportError as error:
        raise UsageError("--html needs Plotly: pip install 'tlkit[dashboard]'") from error
    plots = _plots(analysis)
    shown = [(title, name) for title, name in _SECTIONS if name in plots]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>Bottleneck report</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body>",
        _headline(analysis),
        _verdict(analysis.verdict),
        _predictions(predictions),
        _findings(analysis),
        *(f'<h2>{_text(title)}</h2><div id="{name}"></div>' for title, name in shown),
        _notes(analysis),
        f"<script>{get_plotlyjs()}</script>",
        f"<script>{_draw(plots)}</script>",
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _draw(plots: dict[str, figures.Figure]) -> str:
    return (
        f"const plots = {script_json(plots)}, config = {script_json(PLOT_CONFIG)}; "
        "for (const [name, plot] of Object.entries(plots)) Plotly.newPlot(name, plot.data, plot.layout, config);"
    )


def script_json(value: Any) -> str:
    """JSON that stays data inside a script element, whatever names it holds."""
    text = json.dumps(value, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _text(value: str) -> str:
    return html.escape(clean(value))


def _plots(analysis: Analysis) -> dict[str, figures.Figure]:
    if not analysis.facts.steps.count:
        return {}
    plots = {"anatomy": figures.anatomy(analysis), "steps": figures.steps_over_time(analysis)}
    if len(analysis.facts.ranks) > 1:
        plots["ranks"] = figures.heatmap(analysis)
        if len(analysis.critical_path):
            plots["path"] = figures.critical_path(analysis)
    if (analysis.collectives["busbw_gbps"] > 0).any():
        plots["collectives"] = figures.collectives(analysis)
    return plots


def _headline(analysis: Analysis) -> str:
    meta, durations = analysis.trace.meta, step_durations(analysis)
    pieces = [f"{len(meta.ranks)} of {meta.size} ranks" if len(meta.ranks) != meta.size else f"{meta.size} ranks"]
    if len(durations):
        median, p95 = float(np.median(durations)), float(np.quantile(durations, 0.95))
        pieces.append(f"{len(durations)} steps of {milliseconds(median)} (p95 {milliseconds(p95)})")
    pieces.append(f"{meta.format} timeline")
    files = ", ".join(meta.files[:4]) + (", …" if len(meta.files) > 4 else "")  # noqa: PLR2004
    return f'<h1>Where the step time goes</h1><p class="soft">{_text(", ".join(pieces))}<br>{_text(files)}</p>'


def _verdict(verdict: Finding) -> str:
    style = "verdict healthy" if verdict.class_ == "healthy" else "verdict"
    title = verdict.class_ if verdict.class_ == "healthy" else f"{verdict.class_}: {verdict.cause}"
    lines = [f'<p class="soft">{_text(title)}</p><p class="sentence">{_text(verdict.sentence)}</p>']
    if verdict.remedy:
        lines.append(f"<p>→ {_text(verdict.remedy)}</p>")
    if verdict.predicted_gain > 0:
        lines.append(f'<p class="gain">Expected: {verdict.predicted_gain:.0%} less time a step.</p>')
    return f'<section class="{style}">{"".join(lines)}</section>'


def _predictions(predictions: Sequence[Prediction]) -> str:
    if not predictions:
        return ""
    rows = "".join(
        f"<tr><td>{_text(item.change)}</td><td>{milliseconds(item.step_ns)} → {milliseconds(item.predicted_ns)}</td>"
        f"<td>{item.gain:.0%} less</td></tr>"
        for item in predictions
    )
    return f"<h2>What if</h2><table>{rows}</table>"


def _findings(analysis: Analysis) -> str:
    shown = [finding for finding in analysis.findings if finding.predicted_gain >= 0.01]  # noqa: PLR2004  a per cent
    if not shown:
        return ""
    items = "".join(_item(finding) for finding in shown)
    return f'<h2>Findings, by expected gain</h2><ol class="findings">{items}</ol>'


def _item(finding: Finding) -> str:
    low, high = finding.gain_interval
    evidence = html.escape(json.dumps(finding.evidence, indent=2))
    return (
        f'<li><span class="gain">{finding.predicted_gain:.0%}</span> '
        f'<span class="soft">[{low:.0%} to {high:.0%}] {_text(finding.class_)}: {_text(finding.cause)}</span><br>'
        f"{_text(finding.sentence)}<br>→ {_text(finding.remedy)}"
        f'<details><summary class="soft">evidence</summary><pre>{evidence}</pre></details></li>'
    )


def _notes(analysis: Analysis) -> str:
    if not analysis.notes:
        return ""
    return '<p class="soft">' + "<br>".join(f"Note: {_text(note)}." for note in analysis.notes) + "</p>"
