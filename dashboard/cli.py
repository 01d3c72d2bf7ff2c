"""The command `tl-dash`."""

import argparse
import contextlib
import gc
import os
import secrets
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .. import __version__
from ..collector.service.arguments import add_certificate, add_token, certificate_of, read_token
from ..timeline.commands.arguments import Parser, parse_ranks, run_command, with_completion
from ..timeline.errors import TlkitError, UsageError
from ..timeline.read.families import is_url
from ..timeline.record.flight_requests import listens, request_dump
from .freed_memory import share_heaps

if TYPE_CHECKING:
    from dash import Dash

    from ..collector.analysis import Analysis
    from .first_screen import KeptScreen
    from .opening import Opening
    from .other_runs import OtherRuns
    from .source import Source

_DESCRIPTION = """\
Show where the step time of distributed training goes, in a browser.

  tl-dash t.json                     the timeline of all ranks; finds the other ranks' files beside this one
  tl-dash t.json --compare old.json  with a page that compares the two runs
  tl-dash t.json --runs FOLDER       choose in the browser which of these runs to compare with
  tl-dash t.json --follow            while the training runs
  tl-dash --collector http://host:8060
"""
PORT = 8050
#: Runs with smaller files are opened before the server answers: with as little to wait for, a page of its own would only flicker.
AT_ONCE_NBYTES: Final = 32 * 1024 * 1024


def make_parser() -> argparse.ArgumentParser:
    """The parser of `tl-dash`."""
    parser = Parser(prog="tl-dash", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("trace", nargs="*", metavar="TRACE", help="a timeline, a folder, or a pattern")
    add("--follow", action="store_true", help="show the timeline while it grows; it need not exist yet")
    add("--collector", metavar="URL", help="show a run of a collector (tl-collect serve) while it grows")
    add("--run", metavar="NAME", help="the run of the collector to show (default: the one that grew last)")
    add("--collector-token-file", metavar="FILE", help="file that contains the collector's token")
    add("--collector-token", metavar="TOKEN", help="the collector's token (default: TLKIT_TOKEN)")
    add(
        "--compare",
        metavar="TRACE",
        action="append",
        default=[],
        help="another run to compare with; can be repeated",
    )
    add("--runs", metavar="FOLDER", type=Path, help="folder of runs to compare with, in the layout of tl-collect serve")
    add("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1: only this machine)")
    add("--port", type=int, default=PORT, help=f"port to listen at (default {PORT}; 0: any free one)")
    add_token(
        add, "the token that visitors must present (default: TLKIT_DASH_TOKEN; generated if other machines can connect)"
    )
    add_certificate(add)
    add("--ranks", metavar="R,…", help="show only these ranks")
    add("--warm-up", type=int, metavar="N", help="leave out the first N steps (default: detected)")
    add("--version", action="version", version=f"tl-dash {__version__}")
    return with_completion(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tl-dash`; returns its exit status."""
    try:
        with _no_notebook(), _no_collection():
            return run_command("tl-dash", lambda: _run(make_parser().parse_args(argv)))
    finally:
        gc.unfreeze()


def _run(arguments: argparse.Namespace) -> int:
    if bool(arguments.trace) == bool(arguments.collector):
        raise UsageError("name a trace, or a --collector")
    if (arguments.follow or arguments.collector) and (arguments.ranks or arguments.warm_up is not None):
        raise UsageError("--ranks and --warm-up are for runs that are over, not for --follow and --collector")
    if find_spec("dash") is None:
        raise UsageError("dash is not installed: pip install 'tlkit[dashboard]'")
    share_heaps()
    # Dash takes a second to load: meanwhile the trace is read.
    threading.Thread(target=_load_early, daemon=True).start()
    from ..collector.service.guard import is_loopback  # noqa: PLC0415
    from ..collector.service.serving import serve  # noqa: PLC0415
    from .other_runs import OtherRuns  # noqa: PLC0415

    token = read_token(arguments.token_file, arguments.token or os.environ.get("TLKIT_DASH_TOKEN"))
    with contextlib.ExitStack() as stack:
        if arguments.runs is not None and not arguments.runs.is_dir():
            raise UsageError(f"--runs {arguments.runs}: folder not found")
        others = OtherRuns(arguments.compare, arguments.runs)
        source, opening = _source(arguments, others, stack)
        made_up = None if token or is_loopback(arguments.host) else secrets.token_urlsafe(24)
        app = _load_application()(source, host=arguments.host, token=token or made_up)
        _collect_again()
        status = serve(
            app.server,
            arguments.host,
            arguments.port,
            "tl-dash",
            shown_token=made_up,
            certificate=certificate_of(arguments),
            is_over=opening.is_over.is_set,
        )
        opening.check()
        opening.give_up()
        return status


def _source(
    arguments: argparse.Namespace, others: "OtherRuns", stack: contextlib.ExitStack
) -> "tuple[Source, Opening]":
    """What to show, and how its opening does."""
    from ..collector.apart import MIN_NBYTES  # noqa: PLC0415  as the application
    from .first_screen import KeptScreen  # noqa: PLC0415
    from .opening import PATIENCE_S, Opening  # noqa: PLC0415
    from .source import Source  # noqa: PLC0415

    if arguments.follow or arguments.collector:
        _compare(others, arguments.compare)
        return _follow(arguments, Source, stack, others), Opening()
    place = KeptScreen(arguments.trace, ranks=parse_ranks(arguments.ranks), warm_up=arguments.warm_up)
    first = place.load()
    opening = Opening(_files(arguments.trace) if first is None else list(map(Path, first.files)))
    if first is None and opening.nbytes < AT_ONCE_NBYTES:
        # Without a name here: what the source does not keep of it is given back.
        source = Source(_open(arguments, others, opening, is_new=False), others=others)
    else:
        source = Source(None, others=others, opening=opening, first=first)
        patience_s = 0.0 if first is None else PATIENCE_S
        # Of a large run without a first screen there is most likely no analysis either.
        is_new = first is None and opening.nbytes >= MIN_NBYTES
        opening.start(lambda: _open(arguments, others, opening, is_new=is_new), source.replace, patience_s=patience_s)
    source.keep = lambda: _keep(place, source)
    return source, opening


def _keep(place: "KeptScreen", source: "Source") -> None:
    """Keep the first screen of a run that has been opened."""
    from .app import first_screen  # noqa: PLC0415  as the application

    with contextlib.suppress(LookupError, TlkitError):
        if source.analysis is not None:
            place.store(first_screen(source), source.analysis)


def _files(paths: Sequence[str]) -> list[Path]:
    """The files of a run; none where one has to be fetched to be seen."""
    from ..timeline.read.open import files_of  # noqa: PLC0415  as the analysis

    return [] if any(map(is_url, paths)) else files_of(paths)


def _open(arguments: argparse.Namespace, others: "OtherRuns", opening: "Opening", *, is_new: bool) -> "Analysis":
    """The analysis of the run, after those that were named to compare with: a mistake in a name is told at once.

    Args:
        is_new: whether nothing is known of an earlier opening.
    """
    with _no_collection():
        from ..collector.apart import analyze_apart  # noqa: PLC0415  the server may answer before it is loaded
        from ..timeline.commands.progress import ProgressBar  # noqa: PLC0415  as the analysis
        from .run_header import describe_trace  # noqa: PLC0415  as the application

    _compare(others, arguments.compare)
    with ProgressBar() as bar:

        def update(done: int, total: int) -> None:
            bar.update(done, total)
            opening.update(done, total)

        return analyze_apart(
            arguments.trace,
            warm_up=arguments.warm_up,
            ranks=parse_ranks(arguments.ranks),
            progress=update,
            describe=describe_trace,
            on_described=opening.analysing,
            is_new=is_new,
        )


def _compare(others: "OtherRuns", named: Sequence[str]) -> None:
    for name in others.names()[: len(named)]:
        others.analysis(name)


def _load_application() -> "Callable[..., Dash]":
    """`create_app`.

    Raises:
        UsageError: a package that it needs is not installed.
    """
    try:
        from .app import create_app  # noqa: PLC0415  so that --help needs no Dash
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed: pip install 'tlkit[dashboard]'") from error
    return create_app


@contextlib.contextmanager
def _no_notebook() -> Iterator[None]:
    """Refuse to import IPython: Dash would load all of it, to find out whether it runs in a notebook, and a command does not."""
    if "IPython" in sys.modules:
        yield
        return
    sys.modules["IPython"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.modules.pop("IPython", None)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Collect no garbage: modules that are loaded make many objects and drop none, and looking takes a sixth of the time."""
    gc.disable()
    try:
        yield
    finally:
        _collect_again()


def _collect_again() -> None:
    """From now on, and not among what has been loaded."""
    gc.freeze()
    gc.enable()


def _load_early() -> None:
    """Load the application; who asks for it later is told what is missing."""
    with contextlib.suppress(UsageError):
        _load_application()


def _follow(
    arguments: argparse.Namespace, make: "type[Source]", stack: contextlib.ExitStack, others: "OtherRuns"
) -> "Source":
    """A source that grows with the run."""
    from ..collector.service.live import Follower  # noqa: PLC0415  as the analysis

    source = make(None, others=others, is_live=True, waiting="waiting for the first steps")
    said = {"run": "", "trouble": ""}

    def tell(kind: str, words: str) -> None:
        said[kind] = words
        source.status = "; ".join(filter(None, said.values()))

    paths = arguments.trace
    source.ask_dump = lambda: _ask_ranks(paths)
    if arguments.collector:
        paths = _mirrored(arguments, stack, source, lambda words: tell("trouble", words))
    # Where its shards are put in the meantime tells nobody anything.
    names = {paths[0]: f"the run of {arguments.collector}"} if arguments.collector else {}
    Follower(paths, source.replace, lambda words: tell("run", words), names=names).start()
    return source


def _ask_ranks(paths: Sequence[str]) -> str:
    """Ask the ranks that record on this machine for what their flight recorders have; returns what to say of it."""
    named = [Path(path) for path in paths]
    folder = next((each for each in (path if path.is_dir() else path.parent for path in named) if listens(each)), None)
    if folder is None:
        return (
            "no flight recorder records here: the job needs HOROVOD_FLIGHT_RECORDER, and --follow its FOLDER/recording"
        )
    number = secrets.token_hex(4)
    request_dump(folder, f"asked for in the dashboard (request {number})")
    return f"asked (request {number}); it will be in {folder.parent}"


def _mirrored(
    arguments: argparse.Namespace, stack: contextlib.ExitStack, source: "Source", on_trouble: Callable[[str], None]
) -> list[str]:
    """A folder into which the collector's run is fetched."""
    from ..collector.service.mirror import Mirror  # noqa: PLC0415  as the analysis

    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tlkit-mirror-"))
    given = arguments.collector_token or os.environ.get("TLKIT_TOKEN")
    token = read_token(arguments.collector_token_file, given) or ""
    mirror = Mirror(arguments.collector, arguments.run, token, Path(folder), on_trouble)
    source.ask_dump = mirror.ask_dump
    stack.callback(mirror.stop)
    mirror.start()
    return [folder]


if __name__ == "__main__":
    sys.exit(main())
