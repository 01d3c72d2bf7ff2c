"""The command `tl-tune`."""

import argparse
import difflib
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ... import __version__
from ...timeline.commands.arguments import Parser, for_a_reader, run_command, with_completion
from ...timeline.commands.console import make_console
from ...timeline.commands.progress import ProgressBar
from ...timeline.errors import UsageError
from ..commands.output import write_text
from .jobs import Command
from .report import render, to_json
from .session import Findings, Session, Wishes
from .settings import SETTINGS

_DESCRIPTION: Final = """\
Find settings that make a training faster by trying them: diagnose a short run, try the settings that the diagnosis suggests and
others that may help, and keep those that gain more than chance and change no results.

  tl-tune -np 2 python train.py
  tl-tune -np 2 --minutes 5 --only workers,threads python train.py
  tl-tune torchrun --nproc-per-node 2 train.py

A script that calls hvd.init() runs unchanged; others need one line, tlkit.instrument().  The script is started several times and
stopped after some steps, so it should write its checkpoints elsewhere (TLKIT_TRIAL is set in its environment).
"""

_EPILOG: Final = """\
Settings: {}.
Exit status: 0 success, whether or not a setting is kept, 2 wrong usage or a command that cannot be tuned, 130 after Ctrl-C
(which prints the results so far).
"""

#: A shell's status of a command that Ctrl-C has ended.
INTERRUPTED: Final = 130
#: Ends of a command that a terminal or a scheduler asks for.
_ENDINGS: Final = (signal.SIGTERM, signal.SIGHUP)
_MIN_STEPS: Final = 20


def make_parser() -> argparse.ArgumentParser:
    """The parser of `tl-tune`."""
    parser = Parser(
        prog="tl-tune",
        usage="tl-tune [-np N] [flags] command [its arguments]",
        description=_DESCRIPTION,
        epilog=_EPILOG.format(", ".join(SETTINGS)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "-np",
        "--num-proc",
        type=int,
        dest="np",
        metavar="N",
        help="start N ranks with tl-run; without it, the command starts its ranks itself (torchrun, tl-run) or is a single rank",
    )
    add(
        "--minutes",
        type=float,
        default=10.0,
        metavar="X",
        help="limit of the total time in minutes (default %(default)g)",
    )
    add(
        "--steps",
        type=int,
        default=60,
        metavar="N",
        help="number of steps per trial (default %(default)d); more if they are short",
    )
    add("--only", metavar="NAMES", help="try only these settings, separated by commas")
    add("--skip", metavar="NAMES", help="do not try these settings, separated by commas")
    add(
        "--allow-lossy",
        action="store_true",
        help="also keep settings that change results: compression, and any setting that changes the losses",
    )
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed for the script's random numbers and for the order of trials",
    )
    add(
        "--json",
        metavar="FILE",
        help="write the results as JSON to FILE; - writes only JSON to standard output",
    )
    add(
        "--folder",
        metavar="DIR",
        type=Path,
        help="keep the recording and the output of all jobs in this new or empty folder",
    )
    add("--no-color", action="store_true", help="print plain text, as in a pipe")
    add("--version", action="version", version=f"tl-tune {__version__}")
    add("command", nargs=argparse.REMAINDER, help="the command to run, with its arguments")
    return with_completion(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tl-tune`; returns its exit status."""
    try:
        return run_command("tl-tune", lambda: _run(make_parser().parse_args(argv)))
    except KeyboardInterrupt:  # before there was anything to report, or for the second time
        return INTERRUPTED


def names_of(text: str | None, flag: str) -> set[str] | None:
    """The settings that a flag names; None without it.

    Raises:
        UsageError: there is no such setting.
    """
    if text is None:
        return None
    names = {name.strip() for name in text.split(",") if name.strip()}
    for name in sorted(names - SETTINGS.keys()):
        near = difflib.get_close_matches(name, SETTINGS, n=1)
        meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(SETTINGS)}"
        raise UsageError(f"{flag} {name}: no such setting; {meant}")
    return names


def wishes_of(arguments: argparse.Namespace) -> Wishes:
    """What the flags ask for.

    Raises:
        UsageError: that makes no sense.
    """
    words = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not words:
        raise UsageError("what to run?  Add a command, as in `tl-tune -np 2 python train.py`")
    if arguments.np is not None and arguments.np < 1:
        raise UsageError(f"-np {arguments.np}: at least one rank is needed")
    if arguments.np is not None and Path(words[0]).name in {"tl-run", "horovodrun", "torchrun", "mpirun"}:
        raise UsageError(f"{words[0]} starts ranks itself: omit -np, or name the script alone")
    if not 0 < arguments.minutes < float("inf"):
        raise UsageError("--minutes is a time, more than 0")
    if arguments.steps < _MIN_STEPS:
        raise UsageError(f"--steps {arguments.steps}: trials of fewer than {_MIN_STEPS} steps say nothing")
    only, skip = names_of(arguments.only, "--only"), names_of(arguments.skip, "--skip") or set()
    names = [name for name in SETTINGS if (only is None or name in only) and name not in skip]
    if not names:
        raise UsageError("--only and --skip exclude all settings")
    if arguments.folder is not None and arguments.folder.exists() and any(arguments.folder.iterdir()):
        raise UsageError(f"--folder {arguments.folder} is not empty: choose a new one")
    return Wishes(
        command=Command(words=tuple(words), np=arguments.np),
        steps=arguments.steps,
        minutes=arguments.minutes,
        names=names,
        allow_lossy=arguments.allow_lossy,
        seed=arguments.seed,
        folder=arguments.folder,
    )


def _run(arguments: argparse.Namespace) -> int:
    wishes = wishes_of(arguments)
    for number in _ENDINGS:
        signal.signal(number, _interrupt)
    with ProgressBar("tuning", in_bytes=False) as bar:

        def notify(what: str, done: int, planned: int) -> None:
            bar.update(done, planned, what)

        found = Session(wishes, notify).run()
    _report(found, wishes, arguments)
    return INTERRUPTED if found.interrupted else 0


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _report(found: Findings, wishes: Wishes, arguments: argparse.Namespace) -> None:
    if arguments.json is not None:
        write_text("--json", arguments.json, json.dumps(to_json(found, wishes), indent=2) + "\n", ())
    if arguments.json != "-":
        with for_a_reader():
            render(found, wishes, make_console(is_plain=arguments.no_color))


if __name__ == "__main__":
    sys.exit(main())
