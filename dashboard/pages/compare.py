"""Two runs side by side."""

from typing import Any

from ...collector.compare.runs import compare
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
    low, high = found.ratio_interval
    sure = "more than chance" if found.significant else "within what chance makes"
    word = "slower" if found.ratio > 1 else "faster"
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
        card(
            "The median step",
            table(
                ("", "before", "now", "change"),
                [
                    (
                        "step",
                        milliseconds(found.step.before_ns),
                        milliseconds(found.step.after_ns),
                        f"{abs(found.ratio - 1):.1%} {word}, {sure} (ratio {low:.3f} to {high:.3f})",
                    )
                ],
            ),
        ),
        card("Its parts, largest change first", table(("part", "before", "now", "change"), rows)),
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
    ]
