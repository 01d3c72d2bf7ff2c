"""Where the commands print their tables: with colours on a terminal, as plain text elsewhere."""

import os

from rich.console import Console

from .arguments import width


class _Console(Console):
    """Reports that the output is closed, where Rich would exit with status 1, which has another meaning here."""

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError."""
        raise BrokenPipeError


def make_console(*, is_plain: bool = False) -> Console:
    """A console on standard output that takes no name for markup.

    With `is_plain`, or with NO_COLOR set (https://no-color.org: to anything but an empty string), not one escape code is
    printed, bold and dim ones included.
    """
    if is_plain or os.environ.get("NO_COLOR"):
        return _Console(highlight=False, width=width(), markup=False, emoji=False, color_system=None)
    return _Console(highlight=False, width=width(), markup=False, emoji=False)
