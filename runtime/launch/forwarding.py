"""SIGUSR2 sent to the launcher: handed to one rank, whose flight recorder tells all others."""

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_BIT: Final = 1 << (signal.SIGUSR2 - 1)

#: Fields of /proc/PID/stat after the command's name: session and start time (man 5 proc).
_SESSION, _START = 3, 19


def ask_one(leaders: Iterable[int]) -> bool:
    """Send SIGUSR2 to the first process that waits for it; whether there is one.

    Args:
        leaders: processes that lead the sessions of the ranks.
    """
    for process in _of_sessions(set(leaders)):
        if _catches(process):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGUSR2)
                return True
    return False


def _of_sessions(leaders: set[int]) -> list[int]:
    """The processes of these sessions, oldest first: a rank is older than what it forks, which inherits its handlers."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                if int(fields[_SESSION]) in leaders:
                    found.append((int(fields[_START]), int(process.name)))
    return [process for _, process in sorted(found)]


def _catches(process: int) -> bool:
    """Whether SIGUSR2 would not end it."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) & _BIT)
    return False
