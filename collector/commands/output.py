"""Where a command writes its reports: files that are none of the trace's, or standard output."""

import sys
from collections.abc import Sequence
from pathlib import Path

from ...timeline.commands.arguments import for_a_reader
from ...timeline.errors import UsageError


def write_text(flag: str, target: str, text: str, inputs: Sequence[str]) -> None:
    """Write a report.

    Args:
        flag: the argument that named the target, for messages.
        target: a file, or `-` for standard output.
        inputs: files of the traces, which are never overwritten.

    Raises:
        UsageError: the target is one of the inputs, or cannot be written.
    """
    if target == "-":
        with for_a_reader():
            sys.stdout.write(text)
        return
    path = Path(target)
    if path.resolve() in {Path(name).resolve() for name in inputs}:
        raise UsageError(f"{flag} {target} would overwrite the trace: choose another file")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}") from error
