"""The report for people: ten seconds to the verdict, a minute to the evidence.

Every name that comes from a trace is shown as text, never as markup or terminal control.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ...timeline.commands import clean
from ...timeline.vocabulary import Category
from ..analysis import Analysis
from ..compare.scaling import Scaling
from ..findings import Finding
from ..model.breakdown import EXPOSED, PARTS
from ..model.words import milliseconds
from ..predict.what_if import Prediction
from .palette import COLOURS, label_of
from .report import step_durations, typical_step

_CLASS_STYLE: Final = {"healthy": "green", "unknown": "yellow"}
_BAR_WIDTH: Final = 30
_MOST_COLLECTIVES: Final = 12
_MOST_RANKS: Final = 16
_MOST_ON_PATH: Final = 6
_MOST_LOST: Final = 4
#: Parts of the critical path worth a word, and when it need not be said how often they are on it.
LEAST_SHARE: Final = 0.02
ALWAYS: Final = 0.95


def render(
    analysis: Analysis, console: Console, predictions: Sequence[Prediction] = (), scaled: Scaling | None = None
) -> None:
    """Print the report, and what was predicted."""
    for part in (
        _headline(analysis),
        _verdict(analysis.verdict),
        _predictions(predictions),
        _scaling(scaled),
        _anatomy(analysis),
        _ranks(analysis),
        _path(analysis),
        _collectives(analysis),
        _findings(analysis),
        _notes(analysis),
    ):
        if part is not None:
            console.print(part)


def _headline(analysis: Analysis) -> RenderableType:
    meta, durations = analysis.trace.meta, step_durations(analysis)
    ranks = f"{len(meta.ranks)} of {meta.size} ranks" if len(meta.ranks) != meta.size else f"{meta.size} ranks"
    if meta.size < 2 and len(meta.ranks) == 1:  # noqa: PLR2004
        ranks = "1 rank"
    spans = analysis.trace.spans
    end_ns = int((spans["start_ns"] + spans["dur_ns"]).max()) if len(spans) else 0
    pieces = [f"{meta.format} timeline", ranks, f"{end_ns / 1e9:.1f} s", f"{meta.events:,} events"]
    if len(durations):
        p95 = np.quantile(durations, 0.95)
        pieces.append(
            f"{len(durations)} steps of {milliseconds(float(np.median(durations)))} (p95 {milliseconds(float(p95))})"
        )
    if meta.clock.uncertainty_ns:
        pieces.append(f"clocks within {meta.clock.uncertainty_ns / 1e3:.0f} µs")
    return Text(clean(", ".join(pieces)), style="dim")


def _verdict(verdict: Finding) -> RenderableType:
    style = _CLASS_STYLE.get(verdict.class_, "bold red")
    body = Text(clean(verdict.sentence), style="bold")
    if verdict.remedy:
        body.append("\n→ " + clean(verdict.remedy), style="not bold")
    if verdict.predicted_gain > 0:
        body.append(f"\n  Expected: {verdict.predicted_gain:.0%} less time a step.", style="not bold")
    title = Text(f"{verdict.class_}: {verdict.cause}" if verdict.class_ != "healthy" else "healthy", style=style)
    return Panel(body, title=title, title_align="left", border_style=style, box=box.ROUNDED)


def _predictions(predictions: Sequence[Prediction]) -> RenderableType | None:
    if not predictions:
        return None
    table = Table(title="What if", title_justify="left", box=None, pad_edge=False, show_header=False)
    for prediction in predictions:
        low, high = prediction.gain_interval
        table.add_row(
            clean(prediction.change),
            f"{milliseconds(prediction.step_ns)} → {milliseconds(prediction.predicted_ns)}",
            Text(f"{prediction.gain:.0%} less", style="bold"),
            Text(f"[{low:.0%} to {high:.0%}]", style="dim"),
        )
    return Group(Text(), table)


def _scaling(scaled: Scaling | None) -> RenderableType | None:
    if scaled is None:
        return None
    lost = ", ".join(f"{part} {milliseconds(ns)}" for part, ns in list(scaled.lost_ns.items())[:_MOST_LOST])
    return Text(
        f"\nScaling: {scaled.ranks} ranks do {scaled.speed_up:.2f} times the work of one (efficiency {scaled.efficiency:.0%})"
        + (f"; a step loses {lost}" if lost else "")
    )


def _anatomy(analysis: Analysis) -> RenderableType | None:
    parts = typical_step(analysis)
    total = sum(parts.values())
    if not total:
        return None
    table = Table(title="The median step", title_justify="left", box=None, pad_edge=False, show_header=False)
    for column in ("part", "bar"):
        table.add_column(column, no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for part in PARTS:
        if parts[part] <= 0:
            continue
        share = parts[part] / total
        bar = Text("█" * max(round(share * _BAR_WIDTH), 1), style=COLOURS[part])
        table.add_row(label_of(part, analysis.facts.breakdown), bar, milliseconds(parts[part]), f"{share:.1%}")
    hidden = analysis.facts.breakdown.hidden_ns
    if analysis.facts.breakdown.knows_compute and hidden.any():
        table.add_row(
            "hidden communication", Text("behind computation", style="dim"), milliseconds(float(np.median(hidden))), ""
        )
    return Group(Text(), table)


def _path(analysis: Analysis) -> RenderableType | None:
    if len(analysis.facts.ranks) < 2:  # noqa: PLR2004  the parts of the step say it all
        return None
    rows = analysis.critical_path
    rows = rows[rows["share"] >= LEAST_SHARE].head(_MOST_ON_PATH)
    if rows.empty:
        return None
    held = ", ".join(
        f"rank {row['rank']} {row['part']} {row['share']:.0%}"
        + (f" (in {row['steps_ratio']:.0%} of the steps)" if row["steps_ratio"] < ALWAYS else "")
        for row in rows.to_dict("records")
    )
    return Text(f"\nCritical path: {clean(held)}")


def _ranks(analysis: Analysis) -> RenderableType | None:
    breakdown = analysis.facts.breakdown
    if len(breakdown.ranks) < 2 or not breakdown.knows_compute or not breakdown.step_ns.size:  # noqa: PLR2004
        return None
    table = Table(title="Ranks (mean of a step)", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("rank", justify="right")
    columns = [str(c) for c in (Category.DATA, Category.FORWARD, Category.BACKWARD, Category.OPTIMIZER, Category.OTHER)]
    for name in (*columns, "own work", "waits"):
        table.add_column(name, justify="right")
    table.add_column("")
    own = breakdown.own_work_ns.mean(axis=1)
    waits = np.sum([breakdown.parts_ns[part] for part in EXPOSED], axis=0).mean(axis=1)
    guilty = {rank for f in analysis.findings if f.class_ in {"straggler", "data"} for rank in f.ranks}
    everyone = len(guilty) == len(breakdown.ranks)
    order = np.argsort(-own, kind="stable")[:_MOST_RANKS] if len(own) > _MOST_RANKS else np.arange(len(own))
    for row in order:
        rank = breakdown.ranks[row]
        mark = Text("◀ the others wait for it", style="bold red") if rank in guilty and not everyone else Text()
        values = [milliseconds(float(breakdown.parts_ns[name][row].mean())) for name in columns]
        table.add_row(str(rank), *values, milliseconds(float(own[row])), milliseconds(float(waits[row])), mark)
    if len(own) > _MOST_RANKS:
        table.caption = f"the {_MOST_RANKS} slowest of {len(own)} ranks"
    return Group(Text(), table)


def _collectives(analysis: Analysis) -> RenderableType | None:
    rows = analysis.collectives
    if rows.empty:
        return None
    title = "Collectives of the analysed steps"
    if len(rows) > _MOST_COLLECTIVES:
        rows, title = _by_power_of_two(rows), title + ", by size class"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("kind")
    for name in ("bytes", "count", "median", "wait", "transfer", "algbw GB/s", "busbw GB/s"):
        table.add_column(name, justify="right")
    for row in rows.head(_MOST_COLLECTIVES).to_dict("records"):
        table.add_row(
            clean(str(row["kind"])),
            str(row.get("label") or _bytes(int(row["bytes"]))),
            str(int(row["count"])),
            milliseconds(float(row["median_ns"])),
            milliseconds(float(row["wait_ns"])),
            milliseconds(float(row["transfer_ns"])),
            f"{row['algbw_gbps']:.3f}",
            f"{row['busbw_gbps']:.3f}",
        )
    return Group(Text(), table)


def _by_power_of_two(rows: pd.DataFrame) -> pd.DataFrame:
    """Few rows instead of one for every size; medians weighted by nothing but their number."""
    size_class = np.where(rows["bytes"] > 0, np.floor(np.log2(rows["bytes"].clip(lower=1))), -1).astype(int)
    grouped = rows.assign(size_class=size_class).groupby(["kind", "size_class"], observed=True)
    table = grouped.agg(
        bytes=("bytes", "max"),
        least=("bytes", "min"),
        count=("count", "sum"),
        median_ns=("median_ns", "median"),
        wait_ns=("wait_ns", "median"),
        transfer_ns=("transfer_ns", "median"),
        total_ns=("total_ns", "sum"),
        algbw_gbps=("algbw_gbps", "median"),
        busbw_gbps=("busbw_gbps", "median"),
    ).reset_index()
    table["label"] = [
        _bytes(low) if low == high else f"{_bytes(low)} to {_bytes(high)}"
        for low, high in zip(table["least"], table["bytes"], strict=True)
    ]
    return table.sort_values("total_ns", ascending=False, kind="stable")


def _bytes(nbytes: int) -> str:
    if nbytes < 0:
        return "unknown"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} B"


def _findings(analysis: Analysis) -> RenderableType | None:
    shown = [finding for finding in analysis.findings if finding.predicted_gain >= 0.01]  # noqa: PLR2004  a per cent
    if not shown:
        return None
    lines = Text("\nFindings, by expected gain\n", style="italic")
    for number, finding in enumerate(shown, start=1):
        low, high = finding.gain_interval
        lines.append(f"{number}. {finding.predicted_gain:.0%} ", style="bold")
        lines.append(f"[{low:.0%} to {high:.0%}] {finding.class_}: {finding.cause}\n", style="dim")
        lines.append(f"   {clean(finding.sentence)}\n   → {clean(finding.remedy)}\n")
    return lines


def _notes(analysis: Analysis) -> RenderableType | None:
    if not analysis.notes:
        return None
    return Text("\n" + "\n".join(f"Note: {clean(note)}." for note in analysis.notes), style="dim")
