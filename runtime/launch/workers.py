"""The ranks as processes: started, listened to, and ended together.

Each rank leads a session of its own, so that all it started can be ended with it, and asks the kernel to be ended when
`tl-run` dies, so that not even SIGKILL of the launcher leaves ranks behind.
"""

import codecs
import contextlib
import ctypes
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final, TextIO

#: How long a rank may take to end after SIGTERM before it gets SIGKILL.
GRACE_S: Final = 5.0

_PR_SET_PDEATHSIG: Final = 1
_LINE_END: Final = re.compile(r"(?<=\n)|(?<=\r)(?!\n)")
_CHUNK_NBYTES: Final = 1 << 16


class Output:
    """One stream of one rank: cuts it into lines, and puts the rank before each."""

    def __init__(
        self, rank: int, name: str, source: IO[bytes], console: TextIO, copy: TextIO | None, *, with_time: bool
    ) -> None:
        self.source = source
        self._rank, self._name = rank, name
        self._console, self._copy = console, copy
        self._with_time = with_time
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""

    def pump(self) -> bool:
        """Pass on what has arrived; False at the end of the stream."""
        try:
            data = os.read(self.source.fileno(), _CHUNK_NBYTES)
        except BlockingIOError:
            return True
        text = self._partial + self._decoder.decode(data, final=not data)
        *lines, self._partial = _LINE_END.split(text) if text else [""]
        if not data and self._partial:
            lines.append(self._partial + "\n")
            self._partial = ""
        # A "\r" at the very end may be the first half of "\r\n".
        if lines and not self._partial and lines[-1].endswith("\r") and data:
            self._partial = lines.pop()
        if lines:
            self._write("".join(self._prefix() + line for line in lines))
        if not data and self._copy is not None:
            self._copy.close()
        return bool(data)

    def _prefix(self) -> str:
        when = time.strftime("%a %b %e %H:%M:%S %Y") if self._with_time else ""
        return f"{when}[{self._rank}]<{self._name}>:"

    def _write(self, text: str) -> None:
        for stream in (self._console, self._copy):
            if stream is None:
                continue
            try:
                stream.write(text)
                stream.flush()
            except OSError:  # the reader of our output has gone; the ranks go on
                pass


class Workers:
    """All ranks of a job on this machine."""

    def __init__(self, *, output_folder: str | None, prefix_timestamp: bool) -> None:
        """Prepare; `start` starts."""
        self._folder = Path(output_folder) if output_folder else None
        self._with_time = prefix_timestamp
        self._processes: list[subprocess.Popen[bytes]] = []
        self._outputs: list[Output] = []
        self._stop_signal = 0

    def start(self, command: Sequence[str], environments: Sequence[Mapping[str, str]]) -> None:
        """Start one rank an environment.

        Raises:
            OSError: the command cannot be started; the ranks that were are ended.
        """
        width = len(str(len(environments) - 1))
        launcher = os.getpid()
        try:
            for rank, environment in enumerate(environments):
                process = subprocess.Popen(  # noqa: S603  running the user's command is the purpose
                    command,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    preexec_fn=lambda: _die_with(launcher),  # noqa: PLW1509  a few plain system calls
                )
                self._processes.append(process)
                assert process.stdout is not None
                assert process.stderr is not None
                streams = (("stdout", process.stdout, sys.stdout), ("stderr", process.stderr, sys.stderr))
                for name, source, console in streams:
                    copy = self._copy_file(f"rank.{rank:0{width}d}", name)
                    self._outputs.append(Output(rank, name, source, console, copy, with_time=self._with_time))
        except BaseException:
            self._end_all()
            raise

    def _copy_file(self, rank_folder: str, name: str) -> TextIO | None:
        if self._folder is None:
            return None
        folder = self._folder / rank_folder
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / name).open("w", encoding="utf-8")

    def stop(self, signal_number: int) -> None:
        """Ask for the end; called by a signal handler."""
        self._stop_signal = self._stop_signal or signal_number

    def wait(self) -> int:
        """Pass on output until all ranks have ended.

        Returns:
            0 if all ended with 0; else the first failed rank's code, 128 + n if signal n ended it.
        """
        failed: tuple[int, int] | None = None
        with selectors.DefaultSelector() as selector:
            for output in self._outputs:
                os.set_blocking(output.source.fileno(), False)
                selector.register(output.source, selectors.EVENT_READ, output)
            while failed is None and not self._stop_signal and self._running():
                self._pump(selector, 0.05)
                failed = self._first_failure()
            if failed is not None:
                self._pump_rest(selector)
                print(f"Process {failed[0]} exit with status code {failed[1]}.", file=sys.stderr)
                if self._running():
                    print(f"Terminating remaining workers after failure of Process {failed[0]}.", file=sys.stderr)
            self._end_all(selector)
            self._pump_rest(selector)
        if self._stop_signal:
            return 128 + self._stop_signal
        return failed[1] if failed is not None else 0

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self._processes if process.poll() is None]

    def _first_failure(self) -> tuple[int, int] | None:
        failures = [
            (rank, process.returncode)
            for rank, process in enumerate(self._processes)
            if process.poll() not in {None, 0}
        ]
        # When several have failed since the last look, a signal or a code of its own says more than the error of a
        # rank that merely lost its peer.
        failures.sort(key=lambda failure: (failure[1] > 0, failure[0]))
        if not failures:
            return None
        rank, code = failures[0]
        return rank, code if code > 0 else 128 - code

    @staticmethod
    def _pump(selector: selectors.BaseSelector, timeout_s: float) -> bool:
        if not selector.get_map():
            time.sleep(timeout_s)
            return False
        ready = selector.select(timeout_s)
        for key, _ in ready:
            if not key.data.pump():
                selector.unregister(key.fileobj)
        return bool(ready)

    def _pump_rest(self, selector: selectors.BaseSelector) -> None:
        """What is in the pipes now.  A grandchild may hold them open, so there may be no end to wait for."""
        while selector.get_map() and self._pump(selector, 0.02):
            pass

    def _end_all(self, selector: selectors.BaseSelector | None = None) -> None:
        """SIGTERM, then SIGKILL for who does not listen, then whatever they left behind."""
        for process in self._running():
            _signal_group(process, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while self._running() and time.monotonic() < deadline:
            if selector is None:
                time.sleep(0.05)
            else:
                self._pump(selector, 0.05)
        for process in self._processes:
            _signal_group(process, signal.SIGKILL)
            process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


_libc = ctypes.CDLL(None, use_errno=True)


def _die_with(launcher: int) -> None:
    """Between fork and exec: be killed when the launcher dies; if it has died already, do not start."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher:
        os._exit(1)
