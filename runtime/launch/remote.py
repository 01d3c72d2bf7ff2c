"""The far end of a rank on another host: starts it, and ends it when the connection to `tl-run` breaks.

`tl-run` starts this module over ssh and writes one line of JSON to its standard input: folder, environment and command of the
rank.  Nothing of that is on a command line, where other users would see it.  Standard input stays open as long as `tl-run`
wants the rank to live.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from .forwarding import ask_one
from .guardian import Guardian
from .workers import die_with

GRACE_S: Final = 5.0

#: What belongs to the host where `tl-run` was called.
_STAYS_HOME: Final = ("SSH_", "XDG_", "DBUS_", "BASH_FUNC_")
_STAYS_HOME_TOO: Final = {"HOSTNAME", "DISPLAY", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_", "TERM", "LS_COLORS"}


def describe_rank(command: Sequence[str], environment: Mapping[str, str]) -> bytes:
    """The line that tells this module what to start."""
    travelling = {
        name: value
        for name, value in environment.items()
        if not name.startswith(_STAYS_HOME) and name not in _STAYS_HOME_TOO
    }
    told = {"folder": os.getcwd(), "environment": travelling, "command": list(command)}  # noqa: PTH109
    return json.dumps(told).encode() + b"\n"


def main() -> int:
    """Start the rank that standard input describes; returns its exit status, 128 + n if signal n ended it."""
    told = json.loads(sys.stdin.buffer.readline())
    parent = os.getpid()
    folder = told["folder"] if os.path.isdir(told["folder"]) else None  # noqa: PTH112
    try:
        process = subprocess.Popen(  # noqa: S603  running the user's command is the purpose
            told["command"],
            cwd=folder,
            env={**os.environ, **told["environment"]},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: die_with(parent),  # noqa: PLW1509  a few plain system calls
        )
    except OSError as error:
        sys.stderr.write(f"tl-run: cannot start {told['command'][0]} here: {error.strerror}\n")
        return 127
    guardian = Guardian()
    guardian.watch(process.pid)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: _signal(process, received))
    signal.signal(signal.SIGUSR2, lambda *_: ask_one([process.pid]))
    threading.Thread(target=_end_with_connection, args=(process,), daemon=True).start()
    code = process.wait()
    guardian.dismiss()
    _signal(process, signal.SIGKILL)  # what the rank has left behind
    return code if code >= 0 else 128 - code


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _end_with_connection(process: subprocess.Popen[bytes]) -> None:
    # Not through sys.stdin: the interpreter cannot end while a thread waits in it.
    while os.read(0, 1):
        pass
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal(process, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
            return


if __name__ == "__main__":
    sys.exit(main())
