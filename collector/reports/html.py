"""The report as one file that any browser opens without a network: text first, then plots.

Draws a `Summary` and the plots of figures.py, and computes nothing.
"""

import html
import json
from collections.abc import Sequence
from typing import Any, Final

from ...timeline.commands import clean
from ...timeline.errors import UsageError
from ..analysis import Analysis
from ..findings import Finding
from ..model.words import milliseconds
from . import figures
from .device import device_tables
from .figures import PLOT_CONFIG
from .summary import Summary, title_of

_STYLE: Final = """
:root { color-scheme: light; --text: #1F2933; --soft: #52606D; --paper: #FFFFFF; --bad: #B23A00; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--paper); max-width: 1080px; margin: 0 auto;
  padding: 24px; overflow-wrap: anywhere; }
h1 { font-size: 20px; } h2 { font-size: 16px; margin-top: 32px; }
.soft { color: var(--soft); } .verdict { border: 2px solid var(--bad); border-radius: 8px; padding: 16px 20px; }
.verdict.healthy { border-color: #009E73; } .verdict p { margin: 6px 0; }
.condition { font-weight: 600; color: var(--bad); }
.verdict .sentence { font-size: 18px; font-weight: 600; }
ol.findings li { margin-bottom: 12px; } .gain { font-weight: 600; } pre { white-space: pre-wrap; }
table { border-collapse: collapse; } td, th { padding: 2px 12px 2px 0; text-align: right; font-weight: 400; }
td:first-child { text-align: left; } th { color: var(--soft); }
"""

_SECTIONS: Final = (
    ("The mean step of every rank", "anatomy"),
    ("Steps over the run", "steps"),
    ("What holds the steps: the critical path", "path"),
    ("Own work of every rank over the run", "ranks"),
    ("Collectives: size and bus bandwidth", "collectives"),
)


def to_html(summary: Summary, analysis: Analysis) -> str:
    """The whole report, plots and the program that draws them included (about 5 MB).

    Args:
        summary: of `analysis`, whose single steps the plots show.

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
        _headline(summary),
        *(f'<p class="condition">{_text(sentence)}</p>' for sentence in summary.shown_condition),
        _verdict(summary.verdict),
        _plan(summary),
        _predictions(summary),
        _scaling(summary),
        _parts(summary),
        _blame(summary),
        *(table.to_html(_text) for table in device_tables(summary.device)),
        _findings(summary),
        *(f'<h2>{_text(title)}</h2><div id="{name}"></div>' for title, name in shown),
        _notes(summary),
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


def _headline(summary: Summary) -> str:
    return f'<h1>Where the step time goes</h1><p class="soft">{_text(summary.headline)}<br>{_text(summary.files)}</p>'


def _verdict(verdict: Finding) -> str:
    style = "verdict healthy" if verdict.class_ == "healthy" else "verdict"
    lines = [f'<p class="soft">{_text(title_of(verdict))}</p><p class="sentence">{_text(verdict.sentence)}</p>']
    if verdict.remedy:
        lines.append(f"<p>→ {_text(verdict.remedy)}</p>")
    if verdict.predicted_gain > 0:
        lines.append(f'<p class="gain">Expected: {verdict.predicted_gain:.0%} less time a step.</p>')
    return f'<section class="{style}">{"".join(lines)}</section>'


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts, which are escaped here; nothing without rows."""
    if not rows:
        return ""
    head = "".join(f"<th>{_text(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<h2>{_text(title)}</h2><table><tr>{head}</tr>{body}</table>"


def _plan(summary: Summary) -> str:
    if not summary.plan:
        return ""
    items = "".join(
        f"<li>{milliseconds(step.step_ns)}: {_text(step.finding.remedy or step.finding.sentence)}</li>"
        for step in summary.plan
    )
    return f"<h2>The plan, mean step: {_text(summary.plan_words)}</h2><ol>{items}</ol>"


def _predictions(summary: Summary) -> str:
    rows = [
        (item.change, f"{milliseconds(item.step_ns)} → {milliseconds(item.predicted_ns)}", f"{item.gain:.0%} less")
        for item in summary.predictions
    ]
    return _table("What if", ("change", "step", "gain"), rows)


def _scaling(summary: Summary) -> str:
    found = summary.scaling
    if found is None:
        return ""
    sentence = f"{found.ranks} ranks do {found.speed_up:.2f} times the work of one (efficiency {found.efficiency:.0%})"
    return f"<h2>Scaling</h2><p>{_text(sentence)}</p>"


def _parts(summary: Summary) -> str:
    rows = [
        (part.label, milliseconds(part.mean_ns), f"{part.share:.1%}", milliseconds(part.median_ns))
        for part in summary.shown_parts
    ]
    return _table("The mean step", ("", "mean", "share", "median step"), rows if summary.steps.mean_ns else [])


def _blame(summary: Summary) -> str:
    rows = [
        (f"rank {row.rank}", row.track, row.category, row.name, row.why, milliseconds(row.mean_ns), f"{row.share:.1%}")
        for row in summary.blame
    ]
    return _table("Where the step goes", ("", "track", "category", "name", "why", "mean", "share"), rows)


def _findings(summary: Summary) -> str:
    if not summary.shown_findings:
        return ""
    items = "".join(_item(finding) for finding in summary.shown_findings)
    return f'<h2>Findings, by expected gain</h2><ol class="findings">{items}</ol>'


def _item(finding: Finding) -> str:
    low, high = finding.gain_interval
    evidence = html.escape(json.dumps(finding.evidence, indent=2))
    return (
        f'<li><span class="gain">{finding.predicted_gain:.0%}</span> '
        f'<span class="soft">[{low:.0%} to {high:.0%}] {_text(title_of(finding))}</span><br>'
        f"{_text(finding.sentence)}<br>→ {_text(finding.remedy)}"
        f'<details><summary class="soft">evidence</summary><pre>{evidence}</pre></details></li>'
    )


def _notes(summary: Summary) -> str:
    if not summary.notes:
        return ""
    return '<p class="soft">' + "<br>".join(f"Note: {_text(note)}." for note in summary.notes) + "</p>"
