"""The command `tl-diff`."""

import argparse
import json
import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ... import __version__
from ...timeline.commands import Parser, run_command, width, with_completion
from ...timeline.errors import UsageError
from ...timeline.progress import ProgressBar
from ..analysis import Analysis, analyze
from ..compare.runs import LEAST_RATIO, Comparison, compare, make_diff
from ..model.words import milliseconds

_DESCRIPTION = """\
Say what changed between two runs, and whether it is more than chance.

  tl-diff before.json after.json
  tl-diff before/ after/ --fail-if-slower 5%     for CI
"""


def make_parser() -> argparse.ArgumentParser:
    """The parser of `tl-diff`."""
    parser = Parser(
        prog="tl-diff",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit status: 0 fine, 1 slower than --fail-if-slower allows, 2 bad input or usage.",
    )
    add = parser.add_argument
    add("before", metavar="A", help="a timeline, a folder, a pattern or a URL")
    add("after", metavar="B", help="the same of the other run")
    add("--json", action="store_true", help="as JSON, for programs")
    add(
        "--fail-if-slower",
        metavar="SHARE",
        help="leave with status 1 if the median step of B is longer by more than this, as 5%%, and that is no chance",
    )
    add("--version", action="version", version=f"tl-diff {__version__}")
    return with_completion(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tl-diff`; returns its exit status."""
    return run_command("tl-diff", lambda: _run(make_parser().parse_args(argv)))


def _run(arguments: argparse.Namespace) -> int:
    allowed = _share(arguments.fail_if_slower)
    before, after = _analyse(arguments.before), _analyse(arguments.after)
    comparison = compare(before, after)
    if arguments.json:
        print(json.dumps(make_diff(comparison, before, after), indent=2), flush=True)
    else:
        _show(comparison)
        sys.stdout.flush()
    if allowed is not None and comparison.significant and comparison.ratio > 1 + allowed:
        print(f"tl-diff: the median step is {comparison.ratio - 1:.1%} longer", file=sys.stderr)
        return 1
    return 0


def _share(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / 100
    except ValueError:
        value = -1.0
    if not text.endswith("%") or value < 0:
        raise UsageError(f"--fail-if-slower {text}: a share is needed, as 5%")
    return value


def _analyse(source: str) -> Analysis:
    with ProgressBar() as bar:
        analysis = analyze(source, progress=bar.update)
    if not analysis.facts.steps.count:
        raise UsageError(f"{source}: there are no steps in it that could be compared")
    return analysis


def _show(comparison: Comparison) -> None:
    console = Console(highlight=False, width=width(), markup=False, emoji=False, no_color="NO_COLOR" in os.environ)
    step, (low, high) = comparison.step, comparison.ratio_interval
    word = "longer" if step.difference_ns > 0 else "shorter"
    sure = f"{low - 1:+.1%} to {high - 1:+.1%}" if high < float("inf") else "too few steps to tell"
    sentence = f"The median step is {abs(comparison.ratio - 1):.1%} {word}: {milliseconds(step.before_ns)} → "
    sentence += f"{milliseconds(step.after_ns)} ({sure})."
    if not comparison.significant:
        sentence += " That may be chance."
    console.print(Text(sentence, style="bold"))
    table = Table("part", "before", "after", "change", box=None, header_style="bold")
    for part in comparison.parts:
        if abs(part.difference_ns) >= LEAST_RATIO * max(step.before_ns, 1):
            sign = "+" if part.difference_ns > 0 else "−"  # noqa: RUF001  a minus sign
            changed = f"{sign}{milliseconds(abs(part.difference_ns))}"
            table.add_row(part.name, milliseconds(part.before_ns), milliseconds(part.after_ns), changed)
    if table.row_count:
        console.print(table)
    for label, findings in (("gone", comparison.findings_gone), ("new", comparison.findings_new)):
        if findings:
            console.print(f"{label}: {', '.join(findings)}")


if __name__ == "__main__":
    sys.exit(main())
