"""Requests to set recordings aside, from somebody outside the job: a file beside the recording, in which the ranks look.

Whoever can write there as the user of the job could signal the ranks as well, so that the file gives nobody more than he has.
Who may have it written from elsewhere is up to the collector and the dashboard, which ask for a token.
"""

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

#: File that says that ranks look here.
LISTENS: Final = ".tlkit-listens"
#: File that holds why the recordings are to be set aside.
REQUEST: Final = ".tlkit-request"
#: How often a rank looks, seconds.
LOOK_S: Final = 1.0
MAX_WHY: Final = 200


def listens(folder: Path) -> bool:
    """Whether ranks look for requests in this folder."""
    return (folder / LISTENS).exists()


def request_dump(folder: Path, why: str) -> None:
    """Have all ranks that record into `folder` set their recordings aside, within about two seconds.

    Args:
        why: a sentence without a full stop; ranks obey the same one once.

    Raises:
        OSError: it cannot be written there.
    """
    new = folder / f"{REQUEST}.{os.getpid()}-{secrets.token_hex(4)}"  # nobody has left one of that name
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.write(descriptor, plain(why).encode())
        finally:
            os.close(descriptor)
        new.replace(folder / REQUEST)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def plain(why: str) -> str:
    r"""What was said, as it may stand in a log: one line of letters that show.

    >>> plain("loss is nan\x1b[31m")
    'loss is nan [31m'
    """
    shown = "".join(letter if letter.isprintable() else " " for letter in why)
    return shown.encode("utf-8", "replace").decode()[:MAX_WHY].strip()


class Requests:
    """What a rank looks into."""

    def __init__(self, folder: Path, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Look into `folder` from now on; what was asked before is of an earlier run.

        Args:
            clock_s: seconds.

        Raises:
            OSError: nothing can be written there.
        """
        self._folder = folder
        self._clock_s = clock_s
        self._next_s = clock_s() + LOOK_S
        (folder / REQUEST).unlink(missing_ok=True)
        _clear_half_made(folder)
        (folder / LISTENS).touch()

    def look(self) -> str:
        """Why recordings are to be set aside, "" if nobody asks.  What is asked is told to one rank of a folder only."""
        if self._clock_s() < self._next_s:
            return ""
        self._next_s = self._clock_s() + LOOK_S
        path = self._folder / REQUEST
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid not in {os.geteuid(), 0}:
                return ""
            why = os.read(descriptor, 4 * MAX_WHY).decode("utf-8", "replace")
            path.unlink()  # another rank may have been faster
        except OSError:
            return ""
        finally:
            os.close(descriptor)
        return plain(why) or "somebody asked"

    def stop(self) -> None:
        """Nobody looks here any more."""
        for name in (LISTENS, REQUEST):
            with contextlib.suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)
        _clear_half_made(self._folder)


def _clear_half_made(folder: Path) -> None:
    """Remove requests whose writer died before they were complete."""
    for path in folder.glob(f"{REQUEST}.*"):
        with contextlib.suppress(OSError):
            path.unlink()
