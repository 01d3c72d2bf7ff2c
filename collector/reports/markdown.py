"""The report as Markdown, short enough for a comment on a change."""

from collections.abc import Sequence

import numpy as np

from ...timeline.commands import clean
from ..analysis import Analysis
from ..model.breakdown import PARTS
from ..model.words import milliseconds
from ..predict.what_if import Prediction
from .report import step_durations, typical_step

#: Findings that are listed.
_MOST_FINDINGS = 5


def escape(text: str) -> str:
    """Text that Markdown and HTML leave alone: names come from traces."""
    escaped = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for character in "\\`*_[]|#!~":
        escaped = escaped.replace(character, f"\\{character}")
    return escaped


def to_markdown(analysis: Analysis, predictions: Sequence[Prediction] = ()) -> str:
    """The verdict, the parts of the median step, the findings and what was predicted."""
    meta, verdict, durations = analysis.trace.meta, analysis.verdict, step_durations(analysis)
    title = verdict.class_ if verdict.class_ == "healthy" else f"{verdict.class_}: {verdict.cause}"
    lines = [f"### {escape(title)}", "", escape(verdict.sentence)]
    if verdict.remedy:
        lines += ["", f"**{escape(verdict.remedy)}**"]
    if verdict.predicted_gain > 0:
        lines[-1] += f" Expected: {verdict.predicted_gain:.0%} less time a step."
    if len(durations):
        median, p95 = float(np.median(durations)), float(np.quantile(durations, 0.95))
        lines += [
            "",
            f"{len(durations)} steps of {milliseconds(median)} (p95 {milliseconds(p95)}), {len(meta.ranks)} ranks.",
        ]
        parts = typical_step(analysis)
        total = max(sum(parts.values()), 1)
        lines += ["", "| part of the median step | time | share |", "| --- | --- | --- |"]
        lines += [
            f"| {part} | {milliseconds(parts[part])} | {parts[part] / total:.1%} |" for part in PARTS if parts[part] > 0
        ]
    if predictions:
        lines += ["", "| what if | step | gain |", "| --- | --- | --- |"]
        lines += [
            f"| {escape(item.change)} | {milliseconds(item.step_ns)} → {milliseconds(item.predicted_ns)} | {item.gain:.0%} |"
            for item in predictions
        ]
    shown = [finding for finding in analysis.findings if finding.predicted_gain >= 0.01][:_MOST_FINDINGS]  # noqa: PLR2004  a per cent
    if shown:
        lines += ["", "Findings, by expected gain:", ""]
        lines += [
            f"{number}. {finding.predicted_gain:.0%} {escape(finding.class_)}: {escape(finding.cause)}. "
            f"{escape(finding.sentence)} {escape(finding.remedy)}"
            for number, finding in enumerate(shown, start=1)
        ]
    lines += [""] + [f"- {escape(note)}" for note in analysis.notes] if analysis.notes else []
    return "\n".join(lines) + "\n"
