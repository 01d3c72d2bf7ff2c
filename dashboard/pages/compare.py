"""Two runs side by side."""

from typing import Any, Final

from dash import html

from ...collector.compare.runs import Comparison, compare
from ...collector.compare.series import Ratio
from ...collector.model.words import milliseconds, signed
from ...collector.reports import figures
from ...timeline.commands.arguments import clean
from ..components import card, chart, choices, empty, table
from ..run_header import describe_run, run_name
from . import View

#: Parts that the sentence names.
MAX_PARTS: Final = 3


def layout(view: View) -> Any:
    """The page."""
    names = view.source.others()
    if not names:
        return empty(
            "Compare",
            "Name runs to compare with: tl-dash t.json --compare before.json, or a folder of them: --runs FOLDER",
        )
    asked = view.query.get("before", "")
    name = asked if asked in names else names[0]
    options = [("" if place == 0 else other, other) for place, other in enumerate(names)]
    choice = choices("Before", "compare", "before", options, "" if name == names[0] else name)
    other = view.source.other(name)
    now = run_name(view.analysis) or "this run"
    runs = card(
        "The two runs",
        table(("", "which"), [("before", f"{name}: {describe_run(other)}"), ("now", describe_run(view.analysis))]),
    )
    if not (other.facts.steps.count and view.analysis.facts.steps.count):
        which = name if not other.facts.steps.count else now
        return [choice, runs, empty("Compare", f"{clean(which)} has no steps.")]
    found = compare(other, view.analysis)
    rows = [
        (
            change.name,
            milliseconds(change.before_ns),
            milliseconds(change.after_ns),
            signed(change.difference_ns),
        )
        for change in found.parts
    ]
    return [
        choice,
        card("What changed", html.P(clean(_sentence(found, name)), id="compare-sentence")),
        card("Notes", html.Ul([html.Li(clean(note)) for note in found.notes])) if found.notes else None,
        runs,
        card(
            "Steps",
            table(
                ("", "before", "now", "change", "ratio, with 95 % certainty", "is that more than chance?"),
                [*map(_row, found.ratios), _speed(found)],
            ),
        ),
        card("Parts of the mean step, largest change first", table(("part", "before", "now", "change"), rows))
        if rows
        else None,
        chart(
            figures.two_strips([(f"before ({clean(name)})", other), ("now", view.analysis)], view.theme),
            "Step time of both runs, aligned by step",
        ),
        card(
            "Findings",
            table(
                ("", "which"),
                [
                    ("gone", ", ".join(map(clean, found.findings_gone)) or "none"),
                    ("new", ", ".join(map(clean, found.findings_new)) or "none"),
                ],
            ),
        ),
    ]


def _sentence(found: Comparison, name: str) -> str:
    """What became of the step time, and where."""
    mean = found.ratios[0]
    change_ns = mean.after_ns - mean.before_ns
    if not mean.is_significant:
        return f"A step takes as long as in {name}: the means differ by {mean.ratio - 1:+.1%}, which may be chance."
    compared = "longer" if change_ns > 0 else "shorter"
    moved = [f"{part.name} {signed(part.difference_ns)}" for part in found.shown_parts[:MAX_PARTS]]
    where = f" The parts that changed most: {', '.join(moved)}." if moved else ""
    return f"A step takes {milliseconds(abs(change_ns))} {compared} than in {name} ({mean.ratio - 1:+.1%}).{where}"


def _row(ratio: Ratio) -> tuple[str, ...]:
    low, high = ratio.interval
    sure = "yes" if ratio.is_significant else "no"
    before, after = milliseconds(ratio.before_ns), milliseconds(ratio.after_ns)
    return ratio.name, before, after, f"{ratio.ratio - 1:+.1%}", f"{low:.3f} to {high:.3f}", sure


def _speed(found: Comparison) -> tuple[str, ...]:
    before, after = found.before.steps_per_second, found.after.steps_per_second
    return "steps/s", f"{before:.3g}", f"{after:.3g}", f"{after / before - 1:+.1%}" if before else "", "", ""
