"""The command `tl-trace`."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from ... import __version__
from ..errors import UsageError
from ..export import files as export
from ..model.selection import select
from ..model.trace import Trace
from ..read.open import files_of, open_trace
from ..read.scale_out import map_files
from .arguments import Parser, clean, for_a_reader, parse_range, parse_ranks, run_command, with_completion
from .console import make_console
from .progress import ProgressBar
from .summary import merge_summaries, summarize, summarize_file

_DESCRIPTION = """\
Inspect, merge, slice and convert traces.

  tl-trace info traces/                              the contents, and how well the clocks agree
  tl-trace merge traces/ -o all.json.gz              one file with all ranks for Perfetto, on one clock
  tl-trace slice t.json -o part.json --steps 10:13   a part of the trace
  tl-trace convert t.json -o tables.parquet          the same trace in another format

Traces are timelines of tlkit or of Horovod, traces of the PyTorch profiler, sqlite exports of Nsight Systems, and other
Chrome trace JSON; plain, gzip or zstd; files, folders or patterns.
"""


#: Ranks that a table shows.
_MAX_RANKS = 32


def make_parser() -> argparse.ArgumentParser:
    """The parser of `tl-trace`."""
    parser = Parser(
        prog="tl-trace",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit status: 0 success, 2 wrong input or usage.",
    )
    parser.add_argument("--version", action="version", version=f"tl-trace {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, description: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = commands.add_parser(name, help=description, description=description)
        added.add_argument("trace", nargs="+", metavar="TRACE", help="a file, a folder, or a pattern")
        added.add_argument(
            "--no-cache", action="store_true", help="read the files without the cache, and do not add them to it"
        )
        return added

    info = command("info", "show the contents of a trace")
    info.add_argument("--json", action="store_true", help="print JSON, for programs")
    info.add_argument(
        "--workers", type=int, metavar="N", help="read the files independently in N processes; clocks are not compared"
    )
    info.add_argument("--scheduler", metavar="ADDRESS", help="the same on a Dask cluster, such as tcp://host:8786")
    for name, description in (
        ("merge", "write all ranks to one file, on one clock"),
        ("slice", "write a part of a trace"),
        ("convert", "write a trace in another format"),
    ):
        added = command(name, description)
        added.add_argument("-o", "--output", required=True, metavar="FILE", type=Path, help="the file to write")
        added.add_argument("--to", choices=export.FORMATS, help="the format (default: from the suffix of FILE)")
        added.add_argument("--force", action="store_true", help="overwrite FILE")
        if name == "slice":
            added.add_argument(
                "--time", metavar="A:B", help="only times A to B, in seconds since the start of the trace"
            )
            added.add_argument("--steps", metavar="A:B", help="only steps A to B-1")
            added.add_argument("--ranks", metavar="R,…", help="only these ranks")
            added.add_argument("--categories", metavar="C,…", help="only spans of these categories")
    return with_completion(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tl-trace`; returns its exit status."""

    def work() -> int:
        arguments = make_parser().parse_args(argv)
        return _info(arguments) if arguments.command == "info" else _write(arguments)

    return run_command("tl-trace", work)


def _open(arguments: argparse.Namespace) -> Trace:
    with ProgressBar() as bar:
        return open_trace(arguments.trace, progress=bar.update, use_cache=not arguments.no_cache)


def _write(arguments: argparse.Namespace) -> int:
    output: Path = arguments.output
    form = arguments.to or export.format_of(output)
    if output.exists() and not arguments.force:
        raise UsageError(f"{output} already exists: choose another name, or add --force")
    choose = _selection(arguments) if arguments.command == "slice" else None
    trace = _open(arguments)
    if output.resolve() in {Path(name).resolve() for name in trace.meta.files}:
        raise UsageError(f"{output} is a file of the trace itself: choose another name")
    if choose is not None:
        trace = choose(trace)
    with ProgressBar("writing", in_bytes=False) as bar:
        export.write(trace, output, form, bar.update)
    for note in trace.meta.notes:
        print(f"note: {clean(note)}", file=sys.stderr)
    print(
        f"{output}: {len(trace.spans):,} spans of {len(trace.meta.ranks)} ranks, clock: {_clock(trace)}",
        file=sys.stderr,
    )
    return 0


def _selection(arguments: argparse.Namespace) -> Callable[[Trace], Trace]:
    """What `slice` keeps."""
    time_ns, steps = parse_range("--time", arguments.time, 1e9), parse_range("--steps", arguments.steps)
    ranks = parse_ranks(arguments.ranks)
    categories = arguments.categories.split(",") if arguments.categories else None
    if time_ns is None and steps is None and ranks is None and categories is None:
        raise UsageError("slice needs to know what to keep: --time, --steps, --ranks or --categories")
    return lambda trace: select(trace, time_ns=time_ns, steps=steps, ranks=ranks, categories=categories)


def _clock(trace: Trace) -> str:
    return _clock_text(trace.meta.clock.method, trace.meta.clock.uncertainty_ns)


def _clock_text(method: str, uncertainty_ns: int) -> str:
    described = {
        "single": "one, nothing to align",
        "runtime": f"aligned as the runtime measured it, within {uncertainty_ns / 1e3:.1f} µs",
        "collectives": f"aligned by the collectives that ranks share, within {uncertainty_ns / 1e3:.1f} µs",
        "none": "not aligned",
    }
    return described.get(method, method)


def _info(arguments: argparse.Namespace) -> int:
    if arguments.workers is not None or arguments.scheduler is not None:
        if arguments.workers is not None and arguments.workers < 1:
            raise UsageError("--workers is a number of processes, 1 or more")
        with ProgressBar(in_bytes=False) as bar:
            summaries = map_files(
                summarize_file,
                [str(path.absolute()) for path in files_of(arguments.trace)],
                scheduler=arguments.scheduler,
                workers=arguments.workers,
                progress=bar.update,
            )
        summary = merge_summaries(summaries)
    else:
        summary = summarize(_open(arguments))
    with for_a_reader():
        if arguments.json:
            print(json.dumps(summary, indent=2))
        else:
            _show(summary)
    return 0


def _show(summary: dict[str, Any]) -> None:
    console = make_console()
    ranks, tables, clock = summary["ranks"], summary["tables"], summary["clock"]
    of_all = f" of {summary['size']}" if summary["size"] > len(ranks) else ""
    console.print(
        f"{summary['format']} trace, {len(ranks)}{of_all} ranks, {summary['duration_ns'] / 1e9:.3f} s, "
        f"{summary['events']:,} events, {summary['spans']:,} spans, {tables['steps']:,} steps, "
        f"{tables['collectives']:,} collectives"
    )
    console.print(f"clock: {_clock_text(clock['method'], clock['uncertainty_ns'])}")
    for reason, count in summary["dropped"].items():
        console.print(f"dropped: {reason.replace('_', ' ')}, {count:,} times")
    for note in summary["notes"]:
        console.print(Text(f"note: {clean(note)}"))
    table = Table("lane", "category", "spans", "time", box=None, header_style="bold")
    for row in sorted(summary["lanes"], key=lambda item: -item["total_ns"]):
        table.add_row(row["lane_kind"], row["category"], f"{row['spans']:,}", f"{row['total_ns'] / 1e9:.3f} s")
    console.print(table)
    devices = {rank: row["device"] for rank, row in summary["by_rank"].items() if "device" in row}
    if not devices:
        return
    columns = ("rank", "kernels", "computing", "other work", "idle", "communicating", "of that hidden")
    table = Table(*columns, box=None, header_style="bold")
    for rank, device in list(devices.items())[:_MAX_RANKS]:
        overlap = device["overlap_percent"]
        table.add_row(
            rank,
            f"{sum(kind['count'] for kind in device['kernels'].values()):,}",
            *(f"{device[key] / 1e9:.3f} s" for key in ("compute_ns", "non_compute_ns", "idle_ns", "communication_ns")),
            "" if overlap is None else f"{overlap:.1f}%",
        )
    console.print(table)
    if len(devices) > _MAX_RANKS:
        console.print(f"and {len(devices) - _MAX_RANKS} more ranks: --json has them all")


if __name__ == "__main__":
    sys.exit(main())
