"""The command `tl-collect`."""

import argparse
import contextlib
import os
import secrets
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from ... import __version__
from ...timeline.commands.arguments import Parser, clean, run_command, with_completion
from ...timeline.errors import UsageError
from ...timeline.read.open import files_of
from .alerts import Alerts
from .arguments import add_certificate, add_token, certificate_of, read_token
from .push import Pusher, be_modest
from .store import MAX_NBYTES, ShardStore

PORT = 8060
_MAX_GB = 1e9
_MAX_LISTED = 8
_DESCRIPTION = """\
Collect the timelines of jobs while they train, and diagnose them continuously.

  tl-collect serve runs/                           a collector that stores shards in runs/ (port 8060)
  tl-collect push t.json --to http://host:8060     sends the shards of a job while they grow
  tl-dash --follow runs/NAME                       the dashboard of a run
"""


def make_parser() -> argparse.ArgumentParser:
    """The parser of `tl-collect`."""
    parser = Parser(prog="tl-collect", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"tl-collect {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="serve | push")
    what = "store and diagnose pushed timelines; HTTP API and Prometheus metrics"
    serve = commands.add_parser("serve", help=what, description=what)
    add = serve.add_argument
    add("folder", help="the folder for the shards, with one folder per run")
    add("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1: only this machine)")
    add("--port", type=int, default=PORT, help=f"port to listen at (default {PORT}; 0: any free one)")
    add_token(
        add, "the token that senders must present (default: TLKIT_TOKEN; generated if other machines can connect)"
    )
    add_certificate(add)
    add(
        "--keep-gb",
        type=float,
        default=MAX_NBYTES / 1024**3,
        metavar="N",
        help="remove the oldest runs beyond N GiB (default 20)",
    )
    add(
        "--alert",
        action="append",
        default=[],
        metavar="CONDITION",
        help="condition as for --fail-on of tl-analyze; can be repeated",
    )
    add("--webhook", metavar="URL", help="post alerts to this URL as JSON")
    add("--exit-on-alert", action="store_true", help="exit with status 1 at the first alert")
    what = "send the shards of a job while they grow"
    push = commands.add_parser("push", help=what, description=what)
    add = push.add_argument
    add("trace", nargs="+", help="the timeline, or its folder; it need not exist yet")
    add("--to", required=True, metavar="URL", help="the address of the collector, such as http://host:8060")
    add(
        "--run", metavar="NAME", help="name of the run at the collector (default: the timeline's name and the run's id)"
    )
    add_token(add, "the collector's token (default: TLKIT_TOKEN)")
    add("--once", action="store_true", help="send what has been recorded so far, and exit")
    return with_completion(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tl-collect`; returns its exit status."""
    return run_command("tl-collect", lambda: _run(make_parser().parse_args(argv)))


def _run(arguments: argparse.Namespace) -> int:
    arguments.token = read_token(arguments.token_file, arguments.token or os.environ.get("TLKIT_TOKEN"))
    return _serve(arguments) if arguments.command == "serve" else _push(arguments)


def _serve(arguments: argparse.Namespace) -> int:
    try:
        from .api import create_api  # noqa: PLC0415  so that pushing needs no Flask
        from .guard import is_loopback  # noqa: PLC0415
        from .jobs import Jobs  # noqa: PLC0415
        from .serving import serve  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(f"tl-collect serve needs {error.name}: pip install 'tlkit[dashboard]'") from error
    if not 0 < arguments.keep_gb < _MAX_GB:
        raise UsageError("--keep-gb has to be more than 0, and less than a billion")
    alarmed = threading.Event()

    def on_alert(words: str) -> None:
        print(f"tl-collect: {words}", file=sys.stderr, flush=True)
        if arguments.exit_on_alert and not alarmed.is_set():
            alarmed.set()
            os.kill(os.getpid(), signal.SIGINT)

    alerts = Alerts(arguments.alert, arguments.webhook, on_alert)
    store = ShardStore(Path(arguments.folder), most_nbytes=int(arguments.keep_gb * 1024**3))
    jobs = Jobs(store, alerts)
    token = arguments.token or (None if is_loopback(arguments.host) else secrets.token_urlsafe(24))
    if token and not arguments.token:
        print(
            f"tl-collect: the token is {token} (TLKIT_TOKEN or --token-file sets another)", file=sys.stderr, flush=True
        )
    api = create_api(jobs, host=arguments.host, token=token)
    try:
        serve(api, arguments.host, arguments.port, "tl-collect", certificate=certificate_of(arguments))
    finally:
        jobs.stop()
        store.close()
    return 1 if alarmed.is_set() else 0


def say(words: str) -> None:
    """Tell the user; where even that cannot be written, the sending goes on."""
    with contextlib.suppress(OSError, ValueError):
        print(f"tl-collect: {clean(words)}", file=sys.stderr, flush=True)


def _push(arguments: argparse.Namespace) -> int:
    pusher = Pusher(arguments.trace, arguments.to, arguments.run, arguments.token or "", say)
    be_modest()
    ending = threading.Event()
    if arguments.once:
        files_of(arguments.trace)  # nothing there is a mistake then
        ending.set()

    def end(number: int, frame: FrameType | None) -> None:
        if ending.is_set():  # asked twice: at once
            signal.default_int_handler(number, frame)
        ending.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    try:
        is_complete = pusher.run_until(ending.is_set)
    except KeyboardInterrupt:
        is_complete = False
    if pusher.run is None:
        print(f"tl-collect: nothing was sent: no shard exists yet at {', '.join(arguments.trace)}", file=sys.stderr)
        return 1
    print(f"tl-collect: {pusher.sent_nbytes / 1e6:.1f} MB of {pusher.run} sent", flush=True)
    if is_complete:
        return 0
    missing = pusher.missing()
    listed = ", ".join(f"{nbytes / 1e6:.1f} MB of {name}" for name, nbytes in list(missing.items())[:_MAX_LISTED])
    more = f" and of {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
    rest = listed + more or "it is not known whether all of it arrived"
    print(f"tl-collect: not sent: {rest}; push --once sends the rest", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
