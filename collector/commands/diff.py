"""The command `tl-diff`."""

import argparse
import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ... import __version__
from ...timeline.commands.arguments import Parser, clean, for_a_reader, run_command, with_completion
from ...timeline.commands.console import make_console
from ...timeline.commands.progress import ProgressBar
from ...timeline.errors import UsageError
from ..analysis import Analysis
from ..compare.runs import Comparison, compare, make_diff
from ..compare.series import Ratio
from ..kept import analyze_kept
from ..model.words import milliseconds
from .output import write_text

_DESCRIPTION = """\
Report what changed between two runs, and whether the difference is more than chance.

  tl-diff before.json after.json
  tl-diff before/ after/ --fail-if-slower 5%     for CI
"""


def make_parser() -> argparse.ArgumentParser:
    """The parser of `tl-diff`."""
    parser = Parser(
        prog="tl-diff",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit status: 0 success, 1 slower than --fail-if-slower allows, 2 wrong input or usage.",
    )
    add = parser.add_argument
    add("before", metavar="A", help="a timeline, a folder, a pattern or a URL")
    add("after", metavar="B", help="the same for the other run")
    add(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write the comparison as JSON to FILE; without FILE or with -, write only JSON to standard output",
    )
    add(
        "--fail-if-slower",
        metavar="SHARE",
        help="exit with status 1 if the mean step (throughput), the median or the 95th percentile of B is longer by more than "
        "this, such as 5%%, and by more than chance",
    )
    add("--no-color", action="store_true", help="print plain text, as in a pipe")
    add("--version", action="version", version=f"tl-diff {__version__}")
    return with_completion(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tl-diff`; returns its exit status."""
    return run_command("tl-diff", lambda: _run(make_parser().parse_args(argv)))


def _run(arguments: argparse.Namespace) -> int:
    allowed = _share(arguments.fail_if_slower)
    before, after = _analyse(arguments.before), _analyse(arguments.after)
    comparison = compare(before, after)
    if allowed is not None and not comparison.is_same_job:
        raise UsageError(f"--fail-if-slower: {comparison.notes[0]}")
    if arguments.json is not None:
        text = json.dumps(make_diff(comparison, before, after), indent=2) + "\n"
        write_text("--json", arguments.json, text, (*before.trace.meta.files, *after.trace.meta.files))
    if arguments.json != "-":
        with for_a_reader():
            _show(comparison, make_console(is_plain=arguments.no_color))
    slower = () if allowed is None else comparison.slower(allowed)
    for ratio in slower:
        print(f"tl-diff: the {_NAMES[ratio.name]} is {_longer(ratio)}", file=sys.stderr)
    return 1 if slower else 0


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
        analysis = analyze_kept(source, progress=bar.update)
    if not analysis.facts.steps.count:
        raise UsageError(f"{source}: it contains no steps to compare")
    return analysis


_NAMES = {"mean": "mean step", "median": "median step", "p95": "95th percentile of the steps"}


def _longer(ratio: Ratio) -> str:
    change = ratio.ratio - 1
    if abs(change) < 0.0005:  # noqa: PLR2004  what is printed as 0.0 %
        return f"as long as before: {milliseconds(ratio.after_ns)}"
    word = "longer" if change > 0 else "shorter"
    return f"{abs(change):.1%} {word}: {milliseconds(ratio.before_ns)} → {milliseconds(ratio.after_ns)}"


def _interval(ratio: Ratio) -> str:
    low, high = ratio.interval
    return f"{low - 1:+.1%} to {high - 1:+.1%}" if high < float("inf") else "too few steps to decide"


def _show(comparison: Comparison, console: Console) -> None:
    mean = comparison.mean
    sentence = f"The mean step is {_longer(mean)} ({_interval(mean)})."
    if not mean.is_significant:
        sentence += " That may be chance."
    console.print(Text(sentence, style="bold"))
    console.print(_steps(comparison))
    if comparison.shown_parts:
        console.print(_parts(comparison))
    for label, findings in (("gone", comparison.findings_gone), ("new", comparison.findings_new)):
        if findings:
            console.print(f"{label}: {clean(', '.join(findings))}")
    for note in comparison.notes:
        console.print(Text(f"Note: {clean(note)}.", style="dim"))


def _steps(comparison: Comparison) -> Table:
    table = Table("steps", "before", "now", "change", "interval", "", box=None, header_style="bold")
    for ratio in comparison.ratios:
        table.add_row(
            ratio.name,
            milliseconds(ratio.before_ns),
            milliseconds(ratio.after_ns),
            f"{ratio.ratio - 1:+.1%}",
            _interval(ratio),
            "" if ratio.is_significant else "may be chance",
        )
    speeds = (comparison.before.steps_per_second, comparison.after.steps_per_second)
    table.add_row("steps/s", *(f"{speed:.3g}" for speed in speeds), f"{speeds[1] / max(speeds[0], 1e-12) - 1:+.1%}")
    return table


def _parts(comparison: Comparison) -> Table:
    table = Table("part of the mean step", "before", "now", "change", box=None, header_style="bold")
    for part in comparison.shown_parts:
        sign = "+" if part.difference_ns > 0 else "−"  # noqa: RUF001  a minus sign
        changed = f"{sign}{milliseconds(abs(part.difference_ns))}"
        table.add_row(part.name, milliseconds(part.before_ns), milliseconds(part.after_ns), changed)
    return table


if __name__ == "__main__":
    sys.exit(main())
