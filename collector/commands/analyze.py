"""The command `tl-analyze`."""

import argparse
import json
import sys
from collections.abc import Sequence

from ... import __version__
from ...timeline.commands.arguments import Parser, for_a_reader, parse_range, parse_ranks, run_command, with_completion
from ...timeline.commands.console import make_console
from ...timeline.commands.progress import ProgressBar
from ...timeline.errors import UsageError
from ..analysis import Analysis
from ..compare.baseline import check_change, is_relative, read_baseline
from ..compare.gate import check
from ..compare.scaling import scaling
from ..kept import analyze_kept
from ..predict.what_if import FORMS, predict
from ..reports.html import to_html
from ..reports.markdown import to_markdown
from ..reports.report import to_report
from ..reports.summary import summarize
from ..reports.terminal import render
from .output import write_text

_DESCRIPTION = """\
Report where the step time of distributed training goes, why, and what to change.

  tl-analyze t.json                  the timeline of all ranks; finds the other ranks' files beside this one
  tl-analyze t.json --json -         the same as JSON, for programs
"""


def make_parser() -> argparse.ArgumentParser:
    """The parser of `tl-analyze`."""
    parser = Parser(
        prog="tl-analyze",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit status: 0 success, 1 a condition of --fail-on holds, 2 wrong input or usage.",
    )
    add = parser.add_argument
    add("trace", nargs="+", metavar="TRACE", help="a timeline, a folder, or a pattern")
    add("--json", metavar="FILE", help="write the report as JSON to FILE; - writes only JSON to standard output")
    add(
        "--what-if",
        action="append",
        default=[],
        metavar="CHANGE",
        help="predict the step time after a change, or several separated by commas; can be repeated. "
        + "; ".join(FORMS),
    )
    add(
        "--fail-on",
        action="append",
        default=[],
        metavar="CONDITION",
        help="exit with status 1 if the condition holds, for CI; can be repeated. exposed_comm>20%%, data>5%%, "
        "step_ms>120 (the mean), step_p95_ms>200, steps_per_second<8, gain>10%%",
    )
    add(
        "--baseline",
        metavar="FILE",
        help="an earlier run, as a report of --json or a trace; allows --fail-on conditions such as step_ms>+5%%",
    )
    add(
        "--single",
        metavar="FILE",
        help="the timeline of a run on one rank; reports the scaling efficiency and what reduces it",
    )
    add(
        "--html",
        metavar="FILE",
        help="write the report as one HTML file with plots, which opens offline",
    )
    add(
        "--markdown",
        metavar="FILE",
        help="write the report as Markdown, for a comment on a pull request; - writes to standard output",
    )
    add("--steps", metavar="A:B", help="analyse only steps A to B-1")
    add("--ranks", metavar="R,…", help="analyse only these ranks")
    add("--warm-up", type=int, metavar="N", help="leave out the first N steps (default: detected)")
    add("--no-color", action="store_true", help="print plain text, as in a pipe")
    add("--version", action="version", version=f"tl-analyze {__version__}")
    return with_completion(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tl-analyze`; returns its exit status."""
    return run_command("tl-analyze", lambda: _run(make_parser().parse_args(argv)))


def _run(arguments: argparse.Namespace) -> int:
    if arguments.warm_up is not None and arguments.warm_up < 0:
        raise UsageError("--warm-up is a number of steps, 0 or more")
    steps, ranks = parse_range("--steps", arguments.steps), parse_ranks(arguments.ranks)
    with ProgressBar() as bar:
        analysis = analyze_kept(
            arguments.trace,
            warm_up=arguments.warm_up,
            steps=steps,
            ranks=ranks,
            progress=bar.update,
        )
    predictions = [predict(analysis.facts, changes.split(",")) for changes in arguments.what_if]
    status = _judge(analysis, arguments.fail_on, arguments.baseline)
    scaled = None if arguments.single is None else scaling(analysis, analyze_kept(arguments.single))
    summary = summarize(analysis, predictions, scaled)
    files = analysis.trace.meta.files
    if arguments.html is not None:
        write_text("--html", arguments.html, to_html(summary, analysis), files)
    if arguments.json is not None:
        write_text("--json", arguments.json, json.dumps(to_report(summary), indent=2) + "\n", files)
    if arguments.markdown is not None and not (arguments.markdown == "-" == arguments.json):
        write_text("--markdown", arguments.markdown, to_markdown(summary), files)
    if "-" not in {arguments.json, arguments.markdown, arguments.html}:
        with for_a_reader():
            render(summary, make_console(is_plain=arguments.no_color))
    return status


def _judge(analysis: Analysis, conditions: Sequence[str], baseline_path: str | None) -> int:
    """1 if one of the conditions holds, which is said."""
    status = 0
    baseline = None if baseline_path is None else read_baseline(baseline_path)
    for condition in conditions:
        if is_relative(condition):
            if baseline is None:
                raise UsageError(f"--fail-on {condition}: add --baseline FILE with the run to compare with")
            broken = check_change(analysis, baseline, condition)
        else:
            broken = check(analysis, condition)
        if broken is not None:
            print(f"tl-analyze: --fail-on {condition}: {broken}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
