"""The report as Markdown, short enough for a comment on a change.  Draws a `Summary` and computes nothing."""

from collections.abc import Iterator
from typing import Final

from ...timeline.commands.arguments import clean
from ..model.words import milliseconds
from .device import device_tables
from .summary import Summary, describe_steps, title_of

#: Rows that are listed.
_MAX_FINDINGS: Final = 5
_MAX_BLAMED: Final = 5


def escape(text: str) -> str:
    """Text that Markdown and HTML leave alone: names come from traces."""
    escaped = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for character in "\\`*_[]|#!~":
        escaped = escaped.replace(character, f"\\{character}")
    return escaped


def to_markdown(summary: Summary) -> str:
    """The verdict, the plan, the parts of the step, the findings and what was predicted."""
    blocks = (_condition, _verdict, _plan, _steps, _device, _blame, _code, _predictions, _scaling, _findings, _notes)
    return "\n\n".join("\n".join(lines) for block in blocks if (lines := list(block(summary)))) + "\n"


def _condition(summary: Summary) -> Iterator[str]:
    for sentence in summary.shown_condition:
        yield f"> {escape(sentence)}"


def _verdict(summary: Summary) -> Iterator[str]:
    verdict = summary.verdict
    yield from (f"### {escape(title_of(verdict))}", "", escape(verdict.sentence))
    if verdict.remedy:
        yield from ("", f"**{escape(verdict.remedy)}**")
    if verdict.predicted_gain > 0:
        yield f"Expected: {verdict.predicted_gain:.0%} less time a step."


def _plan(summary: Summary) -> Iterator[str]:
    if summary.plan:
        yield from (f"The plan, mean step: **{summary.plan_words}**", "")
    for number, step in enumerate(summary.plan, start=1):
        yield f"{number}. {milliseconds(step.step_ns)}: {escape(step.finding.remedy or step.finding.sentence)}"


def _steps(summary: Summary) -> Iterator[str]:
    if not summary.steps.count:
        return
    yield from (f"{describe_steps(summary.steps)}; {summary.ranks_of} ranks.", "")
    yield from ("| part of the step | mean | share | median step |", "| --- | --- | --- | --- |")
    for part in summary.shown_parts:
        times = f"{milliseconds(part.mean_ns)} | {part.share:.1%} | {milliseconds(part.median_ns)}"
        yield f"| {escape(part.label)} | {times} |"


def _device(summary: Summary) -> Iterator[str]:
    for table in device_tables(summary.device):
        yield from table.to_markdown(escape)


def _blame(summary: Summary) -> Iterator[str]:
    if summary.blame:
        yield from ("| where the step goes | why | mean | share |", "| --- | --- | --- | --- |")
    for row in summary.blame[:_MAX_BLAMED]:
        who = escape(f"rank {row.rank} {row.track}: {row.category} {row.name}".rstrip())
        yield f"| {who} | {escape(row.why)} | {milliseconds(row.mean_ns)} | {row.share:.1%} |"


def _code(summary: Summary) -> Iterator[str]:
    if summary.code:
        yield from (
            "| line | function | text | part | times | mean | share |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        )
    for row in summary.code:
        texts = " | ".join(escape(text) for text in (row.line, row.function, row.place.text, row.part, row.times))
        yield f"| {texts} | {milliseconds(row.place.mean_ns)} | {row.place.share:.1%} |"


def _predictions(summary: Summary) -> Iterator[str]:
    if summary.predictions:
        yield from ("| what if | step | gain |", "| --- | --- | --- |")
    for item in summary.predictions:
        step = f"{milliseconds(item.step_ns)} → {milliseconds(item.predicted_ns)}"
        yield f"| {escape(item.change)} | {step} | {item.gain:.0%} |"


def _scaling(summary: Summary) -> Iterator[str]:
    if summary.scaling is not None:
        found = summary.scaling
        yield f"Scaling: {found.ranks} ranks do {found.speed_up:.2f} times the work of one (efficiency {found.efficiency:.0%})."


def _findings(summary: Summary) -> Iterator[str]:
    shown = summary.shown_findings[:_MAX_FINDINGS]
    if shown:
        yield from ("Findings, by expected gain:", "")
    for number, finding in enumerate(shown, start=1):
        said = f"{escape(title_of(finding))}. {escape(finding.sentence)} {escape(finding.remedy)}"
        yield f"{number}. {finding.predicted_gain:.0%} {said}"


def _notes(summary: Summary) -> Iterator[str]:
    for note in summary.notes:
        yield f"- {escape(note)}"
