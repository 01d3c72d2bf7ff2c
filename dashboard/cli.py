"""The command `tl-dash`."""

import argparse
import secrets
import sys
from collections.abc import Sequence

from .. import __version__
from ..collector.analysis import analyze
from ..timeline.commands import Parser, parse_ranks, run_command
from ..timeline.errors import UsageError
from ..timeline.progress import ProgressBar

_DESCRIPTION = """\
Show where the step time of a distributed training goes, in a browser.

  tl-dash t.json                     the timeline of all ranks: the files of the others beside it are found
  tl-dash t.json --compare old.json  with a page that sets the two runs side by side
"""
PORT = 8050


def make_parser() -> argparse.ArgumentParser:
    """The parser of `tl-dash`."""
    parser = Parser(prog="tl-dash", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("trace", nargs="+", metavar="TRACE", help="a timeline, a folder, or a pattern")
    add("--compare", metavar="TRACE", help="an earlier run to set beside it")
    add("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1: this machine alone)")
    add("--port", type=int, default=PORT, help=f"port to listen at (default {PORT}; 0: any free one)")
    add("--token", help="what visitors need to know; made up where --host is another machine's way in")
    add("--ranks", metavar="R,…", help="these ranks only")
    add("--warm-up", type=int, metavar="N", help="leave out the first N steps (default: found out)")
    add("--version", action="version", version=f"tl-dash {__version__}")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tl-dash`; returns its exit status."""
    return run_command("tl-dash", lambda: _run(make_parser().parse_args(argv)))


def _run(arguments: argparse.Namespace) -> int:
    try:
        from .app import create_app  # noqa: PLC0415  so that --help needs no Dash
        from .guard import is_loopback  # noqa: PLC0415
        from .serving import serve  # noqa: PLC0415
        from .source import Source  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(f"tl-dash needs {error.name}: pip install 'tlkit[dashboard]'") from error
    ranks = parse_ranks(arguments.ranks)
    with ProgressBar() as bar:
        analysis = analyze(arguments.trace, warm_up=arguments.warm_up, ranks=ranks, progress=bar.update)
    compared = None if arguments.compare is None else analyze(arguments.compare)
    source = Source(analysis, compared=compared)
    token = arguments.token or (None if is_loopback(arguments.host) else secrets.token_urlsafe(24))
    app = create_app(source, host=arguments.host, token=token)
    return serve(app.server, arguments.host, arguments.port, token, "tl-dash")


if __name__ == "__main__":
    sys.exit(main())
