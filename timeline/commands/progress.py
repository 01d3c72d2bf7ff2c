"""A progress bar for commands, on terminals only."""

import os
import sys
import threading
import time
from typing import Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn

#: It appears only if the work takes longer than this.
PATIENCE_S: Final = 2.0


class ProgressBar:
    """Shows how much is done, on a terminal, once it takes long.

    Several threads may report.  Where NO_COLOR asks for plain text, or the terminal knows no escape codes, nothing is shown: a
    bar that moves is made of them.
    """

    def __init__(self, what: str = "reading", *, in_bytes: bool = True) -> None:
        """Begin.

        Args:
            what: what is being done.
            in_bytes: whether amounts are bytes.
        """
        self._what = what
        self._amount = DownloadColumn() if in_bytes else MofNCompleteColumn()
        self._started = time.monotonic()
        self._bar: Progress | None = None
        self._task: Any = None
        self._lock = threading.Lock()
        self._is_wanted = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def __enter__(self) -> Self:
        return self

    def update(self, done: int, total: int, what: str | None = None) -> None:
        """Take note of how much is done.

        Args:
            done: how much.
            total: of how much; may change.
            what: is being done now; None for what was said at the begin.
        """
        if not self._is_wanted or time.monotonic() - self._started < PATIENCE_S:
            return
        with self._lock:
            if self._bar is None:
                columns = (TextColumn("{task.description}", markup=False), BarColumn(), self._amount)
                self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
                self._task = self._bar.add_task(self._what, total=total)
                self._bar.start()
            self._bar.update(self._task, completed=done, total=total, description=what or self._what)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
