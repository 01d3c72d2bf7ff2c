"""The report for people: ten seconds to the verdict, a minute to the evidence.

Draws a `Summary` and computes nothing.  Every name that comes from a trace is shown as text, never as markup or terminal control.
"""

from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ...timeline.commands.arguments import clean
from ..findings import Finding
from ..model.words import milliseconds
from .device import device_tables
from .rows import Part
from .summary import CODE_TITLE, RANK_PARTS, Summary, title_of

_CLASS_STYLE: Final = {"healthy": "green", "unknown": "yellow"}
_BAR_WIDTH: Final = 30
#: A bar's last character: nothing to seven eighths.
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"
_MAX_LOST: Final = 4
_MAX_BLAMED: Final = 8


def render(summary: Summary, console: Console) -> None:
    """Print the report."""
    for part in (
        Text(clean(summary.headline), style="dim"),
        *(Text(clean(sentence), style="bold yellow") for sentence in summary.shown_condition),
        _verdict(summary.verdict),
        _plan(summary),
        _predictions(summary),
        _scaling(summary),
        _anatomy(summary),
        *(table.to_terminal() for table in device_tables(summary.device)),
        _blame(summary),
        _code(summary),
        _ranks(summary),
        _path(summary),
        _collectives(summary),
        _findings(summary),
        _notes(summary),
    ):
        if part is not None:
            console.print(part)


def _verdict(verdict: Finding) -> RenderableType:
    style = _CLASS_STYLE.get(verdict.class_, "bold red")
    body = Text(clean(verdict.sentence), style="bold")
    if verdict.remedy:
        body.append("\n→ " + clean(verdict.remedy), style="not bold")
    if verdict.predicted_gain > 0:
        body.append(f"\n  Expected: {verdict.predicted_gain:.0%} less time a step.", style="not bold")
    title = Text(title_of(verdict), style=style)
    return Panel(body, title=title, title_align="left", border_style=style, box=box.ROUNDED)


def _plan(summary: Summary) -> RenderableType | None:
    if not summary.plan:
        return None
    lines = Text("\nThe plan, mean step: ", style="italic").append(summary.plan_words, style="bold not italic")
    for number, step in enumerate(summary.plan, start=1):
        lines.append(
            f"\n{number}. {milliseconds(step.step_ns)}: {clean(step.finding.remedy or step.finding.sentence)}",
            style="not italic",
        )
    return lines


def _predictions(summary: Summary) -> RenderableType | None:
    if not summary.predictions:
        return None
    table = Table(title="What if", title_justify="left", box=None, pad_edge=False, show_header=False)
    for prediction in summary.predictions:
        low, high = prediction.gain_interval
        table.add_row(
            clean(prediction.change),
            f"{milliseconds(prediction.step_ns)} → {milliseconds(prediction.predicted_ns)}",
            Text(f"{prediction.gain:.0%} less", style="bold"),
            Text(f"[{low:.0%} to {high:.0%}]", style="dim"),
        )
    return Group(Text(), table)


def _scaling(summary: Summary) -> RenderableType | None:
    scaled = summary.scaling
    if scaled is None:
        return None
    lost = ", ".join(f"{part} {milliseconds(ns)}" for part, ns in list(scaled.lost_ns.items())[:_MAX_LOST])
    return Text(
        f"\nScaling: {scaled.ranks} ranks do {scaled.speed_up:.2f} times the work of one (efficiency {scaled.efficiency:.0%})"
        + (f"; a step loses {lost}" if lost else "")
        + ("" if scaled.is_comparable else "; not comparable, see the notes")
    )


def _bar(part: Part) -> Text:
    """Whole blocks and eighths; nothing for a part that is too small for one."""
    whole, eighths = divmod(round(part.share * _BAR_WIDTH * 8) if part.has_bar else 0, 8)
    return Text(("█" * whole + _EIGHTHS[eighths]).rstrip(), style=part.colour)


def _anatomy(summary: Summary) -> RenderableType | None:
    if not summary.steps.mean_ns:
        return None
    table = Table(title="The mean step", title_justify="left", box=None, pad_edge=False, header_style="dim")
    for column in ("", " "):
        table.add_column(column, no_wrap=True)
    for column in ("mean", "share", "median step"):
        table.add_column(column, justify="right", no_wrap=True)
    for part in summary.shown_parts:
        times = (milliseconds(part.mean_ns), f"{part.share:.1%}", milliseconds(part.median_ns))
        table.add_row(part.label, _bar(part), *times)
    if summary.shows_hidden:
        behind = Text("behind computation", style="dim")
        hidden = (milliseconds(summary.hidden_mean_ns), "", milliseconds(summary.hidden_median_ns))
        table.add_row("hidden communication", behind, *hidden)
    return Group(Text(), table)


def _blame(summary: Summary) -> RenderableType | None:
    if not summary.blame:
        return None
    table = Table(title="Where the step goes", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("rank", justify="right")
    for name in ("track", "category", "name", "why"):
        table.add_column(name)
    for name in ("mean", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in summary.blame[:_MAX_BLAMED]:
        texts = (Text(clean(text)) for text in (row.track, row.category, row.name, row.why))
        table.add_row(str(row.rank), *texts, milliseconds(row.mean_ns), f"{row.share:.1%}")
    rest = summary.blame[_MAX_BLAMED:]
    if rest:
        table.caption = f"and {len(rest)} more"
    return Group(Text(), table)


def _code(summary: Summary) -> RenderableType | None:
    if not summary.code:
        return None
    table = Table(title=CODE_TITLE, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("line", no_wrap=True)
    for name in ("function", "text"):
        table.add_column(name)
    table.add_column("part")
    for name in ("times", "mean", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in summary.code:
        texts = (Text(clean(text)) for text in (row.line, row.function, row.place.text, row.part, row.times))
        table.add_row(*texts, milliseconds(row.place.mean_ns), f"{row.place.share:.1%}")
    return Group(Text(), table)


def _path(summary: Summary) -> RenderableType | None:
    if summary.ranks_of < 2 or not summary.shown_path:  # noqa: PLR2004  of one rank the parts of the step say it all
        return None
    return Text(f"\nCritical path: {clean(', '.join(row.words for row in summary.shown_path))}")


def _ranks(summary: Summary) -> RenderableType | None:
    if not summary.ranks:
        return None
    table = Table(title="Ranks (mean of a step)", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("rank", *RANK_PARTS, "own work", "waits"):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in summary.ranks:
        mark = Text("◀ the others wait for it", style="bold red") if row.is_waited_for else Text()
        times = (*(row.parts_ns[name] for name in RANK_PARTS), row.own_work_ns, row.waits_ns)
        table.add_row(str(row.rank), *map(milliseconds, times), mark)
    if len(summary.ranks) < summary.ranks_of:
        table.caption = f"the {len(summary.ranks)} slowest of {summary.ranks_of} ranks"
    return Group(Text(), table)


def _collectives(summary: Summary) -> RenderableType | None:
    if not summary.collective_classes:
        return None
    title = "Collectives of the analysed steps" + (", by size class" if summary.is_classed else "")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("kind")
    for name in ("bytes", "count", "median", "wait", "transfer", "algbw GB/s", "busbw GB/s"):
        table.add_column(name, justify="right")
    for row in summary.collective_classes:
        times = (milliseconds(row.median_ns), *row.split_words)
        table.add_row(clean(row.kind), row.size, str(row.count), *times, *row.bandwidth_words)
    return Group(Text(), table)


def _findings(summary: Summary) -> RenderableType | None:
    if not summary.shown_findings:
        return None
    lines = Text("\nFindings, by expected gain\n", style="italic")
    for number, finding in enumerate(summary.shown_findings, start=1):
        low, high = finding.gain_interval
        lines.append(f"{number}. {finding.predicted_gain:.0%} ", style="bold")
        lines.append(f"[{low:.0%} to {high:.0%}] {title_of(finding)}\n", style="dim")
        lines.append(f"   {clean(finding.sentence)}\n   → {clean(finding.remedy)}\n")
    return lines


def _notes(summary: Summary) -> RenderableType | None:
    if not summary.notes:
        return None
    return Text("\n" + "\n".join(f"Note: {clean(note)}." for note in summary.notes), style="dim")
