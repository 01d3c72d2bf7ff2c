"""The report as one file that any browser opens without a network: text first, then plots.

Draws a `Summary` and the plots of figures.py, and computes nothing.
"""

import html
from collections.abc import Iterator, Sequence
from typing import Final

from ...timeline.commands.arguments import clean
from ...timeline.palette import THEMES
from ..analysis import Analysis
from ..findings import Finding
from ..model.words import milliseconds
from . import figures, figures_communication, figures_ranks
from .device import device_tables
from .evidence import evidence_rows
from .markup import scrolling
from .summary import CODE_TITLE, Summary, summarize, title_of
from .svg import STYLE, to_svg

_COLOURS: Final = {
    theme: " ".join(f"--{name}: {THEMES[theme][name]};" for name in ("text", "soft", "paper", "line", "bad", "good"))
    for theme in THEMES
}
_PARTS: Final = f"""
h1 {{ font-size: 20px; }} h2 {{ font-size: 16px; margin-top: 32px; }}
.soft {{ color: var(--soft); }} .verdict {{ border: 2px solid var(--bad); border-radius: 8px; padding: 16px 20px; }}
.verdict.healthy {{ border-color: var(--good); }} .verdict.unknown {{ border-color: var(--soft); }}
.verdict p {{ margin: 6px 0; }}
.condition {{ font-weight: 600; color: var(--bad); }}
.verdict .sentence {{ font-size: 18px; font-weight: 600; }}
ol.findings li {{ margin-bottom: 12px; }} .gain {{ font-weight: 600; }} .evidence {{ margin: 6px 0; }}
.scrolls {{ overflow-x: auto; }} table {{ border-collapse: collapse; }}
td, th {{ padding: 2px 12px 2px 0; text-align: right; font-weight: 400; vertical-align: top; }}
td:first-child, th:first-child, .words {{ text-align: left; }} th {{ color: var(--soft); }}
.scrolls td, .scrolls th {{ white-space: nowrap; }}
{STYLE}
"""
_STYLE: Final = f"""
:root {{ color-scheme: light dark; {_COLOURS["light"]} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_COLOURS["dark"]} }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--paper); max-width: 1080px; margin: 0 auto;
  padding: 24px; overflow-wrap: break-word; }}
{_PARTS}
@media print {{
  :root {{ color-scheme: light; {_COLOURS["light"]} }}
  body {{ padding: 0; max-width: none; font-size: 11pt; }} section, tr, li {{ break-inside: avoid; }} h2 {{ break-after: avoid; }}
  .scrolls {{ overflow: visible; }} .scrolls .words {{ white-space: normal; }} td:first-child {{ min-width: 9ch; }}
  .scrolls > .chart {{ min-width: 0; }}
  details::details-content {{ content-visibility: visible; block-size: auto; }}
}}
"""
#: The rules are nested, so that they touch nothing else of a notebook.
_CELL: Final = f"""
.tlkit-report {{ {_COLOURS["light"]} font: 14px/1.5 system-ui, sans-serif; color: var(--text); background: var(--paper);
  padding: 12px; overflow-wrap: break-word; {_PARTS} table {{ font: inherit; color: inherit; }} }}
@media (prefers-color-scheme: dark) {{ .tlkit-report {{ {_COLOURS["dark"]} }} }}
[data-jp-theme-light="true"] .tlkit-report {{ {_COLOURS["light"]} }}
[data-jp-theme-light="false"] .tlkit-report {{ {_COLOURS["dark"]} }}
"""


def to_html(summary: Summary, analysis: Analysis) -> str:
    """The whole report in one file without a program: text, tables, and plots as SVG.

    Args:
        summary: of `analysis`, whose single steps the plots show.
    """
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>Bottleneck report</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body><main>",
        _headline(summary),
        *(f'<p class="condition">{_text(sentence)}</p>' for sentence in summary.shown_condition),
        _verdict(summary.verdict),
        _plan(summary),
        _predictions(summary),
        _scaling(summary),
        _parts(summary),
        _blame(summary),
        _code(summary),
        *(table.to_html(_text) for table in device_tables(summary.device)),
        _findings(summary),
        *_plots(summary, analysis),
        _notes(summary),
        "</main></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def analysis_cell(analysis: Analysis) -> str:
    """What a notebook shows of an analysis: verdict, plan, the parts of a step, and the steps of all ranks."""
    summary = summarize(analysis)
    parts = [
        f'<p class="soft">{_text(summary.headline)}</p>',
        *(f'<p class="condition">{_text(sentence)}</p>' for sentence in summary.shown_condition),
        _verdict(summary.verdict),
        _plan(summary),
        _parts(summary),
    ]
    figure = figures.strip(analysis)
    if figure is not None:
        parts.append(
            f"<h2>Step time over the run</h2>{scrolling('Step time over the run', to_svg(figure, 'Step time over the run'))}"
        )
    return _cell(parts)


def finding_cell(finding: Finding) -> str:
    """What a notebook shows of a finding."""
    return _cell([_verdict(finding)])


def _cell(parts: Sequence[str]) -> str:
    return f'<div class="tlkit-report"><style>{_CELL}</style>{"".join(parts)}</div>'


def _text(value: str) -> str:
    return html.escape(clean(value))


def _plots(summary: Summary, analysis: Analysis) -> Iterator[str]:
    """A section for each plot that has something to show."""
    facts = analysis.facts
    if not facts.steps.count:
        return
    rank = summary.slow_rank
    plots: tuple[tuple[str, figures.Figure | None], ...] = (
        ("Step time over the run", figures.strip(analysis)),
        (f"Rank {rank} beside a typical rank", figures_ranks.waterfall(summary)),
        (figures.anatomy_title(analysis), figures.anatomy(analysis)),
        (
            f"Steps over the run{'' if rank is None else f': rank {rank}, the slowest'}",
            figures.steps_over_time(analysis, rank),
        ),
        (
            "What holds the steps: the critical path",
            figures_ranks.path_in_time(analysis) if len(facts.ranks) > 1 else None,
        ),
        ("How far every rank's own work is from the typical rank's", figures_ranks.deviations(analysis, "own work"))
        if rank is not None
        else ("", None),
        ("Who waits for whom", figures_ranks.waits(summary) if len(facts.ranks) > 2 else None),  # noqa: PLR2004
        ("What a collective costs by its size", figures_communication.costs(analysis, summary.lines)),
    )
    for title, figure in plots:
        if figure is not None:
            yield f"<section><h2>{_text(title)}</h2>{scrolling(title, to_svg(figure, title))}</section>"


def _headline(summary: Summary) -> str:
    return f'<h1>Where the step time goes</h1><p class="soft">{_text(summary.headline)}<br>{_text(summary.files)}</p>'


def _verdict(verdict: Finding) -> str:
    style = {"healthy": "verdict healthy", "unknown": "verdict unknown"}.get(verdict.class_, "verdict")
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
    # Words begin in line, numbers end in line.
    tags = [
        'td class="words"' if not any(row[at][:1].isdigit() for row in rows) else "td" for at in range(len(columns))
    ]
    head = "".join(
        f"<{tag.replace('td', 'th')}>{_text(column)}</th>" for tag, column in zip(tags, columns, strict=True)
    )
    lines = ("".join(f"<{tag}>{_text(cell)}</td>" for tag, cell in zip(tags, row, strict=True)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<h2>{_text(title)}</h2>{scrolling(title, f'<table><tr>{head}</tr>{body}</table>')}"


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
    return _table("The mean step", ("part", "mean", "share", "median step"), rows if summary.steps.mean_ns else [])


def _blame(summary: Summary) -> str:
    rows = [
        (f"rank {row.rank}", row.track, row.category, row.name, row.why, milliseconds(row.mean_ns), f"{row.share:.1%}")
        for row in summary.blame
    ]
    return _table("Where the step goes", ("rank", "track", "category", "name", "why", "mean", "share"), rows)


def _code(summary: Summary) -> str:
    rows = [
        (
            row.line,
            row.function,
            row.place.text,
            row.part,
            row.times,
            milliseconds(row.place.mean_ns),
            f"{row.place.share:.1%}",
        )
        for row in summary.code
    ]
    return _table(CODE_TITLE, ("line", "function", "text", "part", "times", "mean", "share"), rows)


def _findings(summary: Summary) -> str:
    if not summary.shown_findings:
        return ""
    items = "".join(_item(finding) for finding in summary.shown_findings)
    return f'<h2>Findings, by expected gain</h2><ol class="findings">{items}</ol>'


def _item(finding: Finding) -> str:
    low, high = finding.gain_interval
    evidence = "<br>".join(_text(f"{name}: {value}") for name, value in evidence_rows(finding.evidence))
    return (
        f'<li><span class="gain">{finding.predicted_gain:.0%}</span> '
        f'<span class="soft">[{low:.0%} to {high:.0%}] {_text(title_of(finding))}</span><br>'
        f"{_text(finding.sentence)}<br>→ {_text(finding.remedy)}"
        f'<details><summary class="soft">evidence</summary><p class="evidence">{evidence}</p></details></li>'
    )


def _notes(summary: Summary) -> str:
    if not summary.notes:
        return ""
    return '<p class="soft">' + "<br>".join(f"Note: {_text(note)}." for note in summary.notes) + "</p>"
