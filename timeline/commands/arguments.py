"""What the commands share: how they take arguments, and how they end."""

import argparse
import difflib
import errno
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from ..errors import TlkitError, UsageError

#: What a shell reports of a program that SIGPIPE has ended.
BROKEN_PIPE_STATUS: Final = 141


#: What argparse says of flags and choices that it does not know.
_UNRECOGNIZED: Final = re.compile(r"unrecognized arguments: (.*)", re.DOTALL)
_INVALID_CHOICE: Final = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")


class Parser(argparse.ArgumentParser):
    """Raises instead of leaving, so that wrong usage is an error like any other."""

    def error(self, message: str) -> Any:
        """Raises UsageError, with what a mistyped flag or command may have meant."""
        meant = _meant(self, message)
        raise UsageError(f"{message}; {meant or f'see {self.prog} --help'}")


def _meant(parser: argparse.ArgumentParser, message: str) -> str:
    """`did you mean --what-if?` for what argparse says of words that it does not know; "" where nothing is near."""
    unknown = _UNRECOGNIZED.fullmatch(message)
    choice = _INVALID_CHOICE.search(message)
    if unknown is not None:
        words = [word.partition("=")[0] for word in unknown[1].split() if word.startswith("-")]
        known = [flag for flag in _flags(parser) if flag.startswith("-")]
    elif choice is not None:
        words, known = [choice[1]], re.findall(r"[\w.-]+", choice[2])
    else:
        return ""
    near = [close[0] for word in words if (close := difflib.get_close_matches(word, known, n=1, cutoff=0.7))]
    return f"did you mean {' '.join(near)}?" if near else ""


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    """Every flag of a command and of its commands, but for those that its help does not show."""
    found: list[str] = []
    for action in parser._actions:  # noqa: SLF001  argparse has no other way to its arguments
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            found += [flag for command in action.choices.values() for flag in _flags(command)]
        elif action.help != argparse.SUPPRESS:
            found += action.option_strings
    return found


class _PrintCompletion(argparse.Action):
    """Prints what a shell needs to complete the command, and leaves."""

    def __call__(self, parser: argparse.ArgumentParser, _namespace: Any, shell: Any, _option: Any = None) -> None:
        import shtab  # noqa: PLC0415  wanted once a year

        _complete_files(parser, shtab)
        print(shtab.complete(parser, shell))
        parser.exit(0)


def with_completion(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """`parser`, with a flag that prints what a shell needs to complete the command."""
    parser.add_argument(
        "--print-completion",
        choices=("bash", "zsh", "tcsh"),
        action=_PrintCompletion,
        help="print a completion script for this command and shell, and exit",
    )
    return parser


def _complete_files(parser: argparse.ArgumentParser, shtab: Any) -> None:
    """Arguments that are called after files or folders complete as such."""
    for action in parser._actions:  # noqa: SLF001  argparse has no other way to its arguments
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                _complete_files(command, shtab)
        elif action.metavar in {"DIR", "FOLDER"}:
            vars(action)["complete"] = shtab.DIRECTORY
        elif action.metavar in {"FILE", "TRACE", "SHARD", "OTHER"} or action.dest == "command":
            vars(action)["complete"] = shtab.FILE


def run_command(name: str, work: Callable[[], int]) -> int:
    """Do the work of a command; returns its exit status.

    An error of ours is one line.  Output that nobody reads any more (`| head -1`) ends a command quietly: with its own status
    where it prints within `for_a_reader`, with that of a program that SIGPIPE has ended otherwise.
    """
    # Started without standard output or error (`>&-`), there is nobody to tell.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115  open to the end
    sys.stderr = sys.stderr or sys.stdout
    try:
        try:
            return work()
        finally:
            sys.stdout.flush()
    except TlkitError as error:
        print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        _print_nowhere()
        return BROKEN_PIPE_STATUS
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EIO, errno.EDQUOT}:
            raise
        _print_nowhere()
        print(f"{name}: cannot write the output: {error.strerror}", file=sys.stderr)
        return TlkitError.exit_code


@contextmanager
def for_a_reader() -> Iterator[None]:
    """What is printed within may be left unread: the command goes on to its own end, and its status stays what it is."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _print_nowhere()


def _print_nowhere() -> None:
    """So that what is still in the buffer does not fail again at the end of the program."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def parse_range(flag: str, text: str | None, unit: float = 1) -> tuple[int, int] | None:
    """`10:20` as two numbers, multiplied by `unit`; either may be left out.

    Raises:
        UsageError: it is something else.
    """
    if text is None:
        return None
    first, colon, last = text.partition(":")
    number: Callable[[str], float] = int if unit == 1 else float
    try:
        if not colon:
            raise ValueError(text)
        bounds = (round(number(first or "0") * unit), round(number(last) * unit) if last else sys.maxsize)
    except (ValueError, OverflowError):
        raise UsageError(f"{flag} {text}: two numbers and a colon are needed, as in 10:20") from None
    if bounds[0] >= bounds[1]:
        raise UsageError(f"{flag} {text}: the second number has to be larger")
    return bounds


def parse_ranks(text: str | None) -> list[int] | None:
    """`0,3` as numbers.

    Raises:
        UsageError: it is something else.
    """
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--ranks {text}: numbers with commas are needed, as in 0,3") from None


def clean(text: str) -> str:
    """Text without characters that a terminal would act on."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def width() -> int | None:
    """How wide tables are: a pipe has no width, so that lines are as long as they need to be, up to what a log viewer shows."""
    return None if sys.stdout.isatty() else 110


__all__ = [
    "BROKEN_PIPE_STATUS",
    "Parser",
    "clean",
    "for_a_reader",
    "parse_range",
    "parse_ranks",
    "run_command",
    "width",
]
