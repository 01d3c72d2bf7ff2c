"""Two runs side by side."""

from typing import Any

from dash import html

from ...collector.compare.runs import Comparison, compare
from ...collector.compare.series import Ratio
from ...collector.model.words import milliseconds
from ...timeline.commands import clean
from ..components import card, empty, table
from . import View


def layout(view: View) -> Any:
    """The page."""
    other = view.source.compared
    if other is None:
        return empty("Compare", "Give an earlier run to compare with: tl-dash t.json --compare before.json")
    if not (other.facts.steps.count and view.analysis.facts.steps.count):
        return empty("Compare", "One of the runs has no steps.")
    found = compare(other, view.analysis)
    rows = [
        (
            change.name,
            milliseconds(change.before_ns),
            milliseconds(change.after_ns),
            f"{change.difference_ns / 1e6:+.2f} ms",
        )
        for change in found.parts
    ]
    return [
        card("Steps", table(("", "before", "now", "change"), [*map(_row, found.ratios), _speed(found)])),
        card("Parts of the mean step, largest change first", table(("part", "before", "now", "change"), rows)),
        card(
            "Findings",
            table(
                ("", ""),
                [
                    ("gone", ", ".join(map(clean, found.findings_gone)) or "none"),
                    ("new", ", ".join(map(clean, found.findings_new)) or "none"),
                ],
            ),
        ),
        card("Notes", html.Ul([html.Li(clean(note)) for note in found.notes])) if found.notes else None,
    ]


def _row(ratio: Ratio) -> tuple[str, ...]:
    low, high = ratio.interval
    sure = "more than chance" if ratio.is_significant else "within what chance makes"
    change = f"{ratio.ratio - 1:+.1%}, {sure} (ratio {low:.3f} to {high:.3f})"
    return ratio.name, milliseconds(ratio.before_ns), milliseconds(ratio.after_ns), change


def _speed(found: Comparison) -> tuple[str, ...]:
    return "steps/s", f"{found.before.steps_per_second:.3g}", f"{found.after.steps_per_second:.3g}", ""
