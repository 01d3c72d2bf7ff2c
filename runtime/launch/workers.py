"""The ranks as processes: started, listened to, and ended together.

Each rank leads a session of its own, so that all it started can be ended with it, and asks the kernel for SIGTERM when `tl-run`
dies.  With the guardian, which does the same for what the ranks have started and kills what is left after the grace, not even
SIGKILL of the launcher leaves anything behind.
"""

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from ...timeline.errors import UsageError
from .forwarding import ask_one
from .guardian import GRACE_S, Guardian
from .output import LinePrefixer, RankStream, Sink

_PR_SET_PDEATHSIG: Final = 1

#: How often to look whether a rank has ended that keeps its output open.
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Rank:
    """What to start for one rank, or for all of them behind a launcher."""

    command: Sequence[str]
    environment: Mapping[str, str]
    label: int | None
    """The rank's number, which its lines of output begin with; None for output that is labelled already."""
    said: bytes | None = None
    """What to write to its standard input, which then stays open as long as it shall live; None for no input."""


class _Worker:
    """One rank."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes], streams: Sequence[RankStream]) -> None:
        self.rank = rank
        self.process = process
        self.streams = streams
        self.was_signalled = False

    def signal(self, number: int) -> None:
        """Signal the rank and what it started.  Only before it is reaped: then its number may be another's."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def has_ended(self) -> bool:
        """Whether the rank has ended; it is not reaped."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, options) is not None

    def reap(self) -> int:
        """Once the rank has ended, kill what is left of its group, and pass on the last output.

        Returns:
            exit status, -n if signal n ended the rank.
        """
        self.signal(signal.SIGKILL)
        code = self.process.wait()
        for stream in self.streams:
            stream.finish()
        return code


class Workers:
    """All ranks of a job on this machine."""

    def __init__(self, *, output_folder: str | None, prefix_timestamp: bool) -> None:
        """Prepare; `start` starts."""
        self._folder = Path(output_folder) if output_folder else None
        self._with_time = prefix_timestamp
        self._alive: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._guardian: Guardian | None = None
        self._stop_signal = 0
        self._is_impatient = False

    def start(self, ranks: Sequence[Rank]) -> None:
        """Start the ranks.

        Raises:
            UsageError: the folder for output cannot be made.
            OSError: the command cannot be started; the ranks that were are ended.
        """
        width = len(str(len(ranks) - 1))
        # All folders before the first rank: what cannot be written is wrong usage.
        copies = [self._open_copies(f"rank.{number:0{width}d}") for number in range(len(ranks))]
        self._guardian = Guardian()
        try:
            for number, rank in enumerate(ranks):
                self._start(number, rank, copies[number])
        except BaseException:
            self._end_all(signal.SIGTERM)
            raise

    def add(self, number: int, rank: Rank) -> None:
        """Start one rank more, under a number that no other has had.

        Raises:
            UsageError: the folder for output cannot be made.
            OSError: the command cannot be started.
        """
        if self._guardian is None:
            self._guardian = Guardian()
        self._start(number, rank, self._open_copies(f"rank.{number}"))

    def _start(self, number: int, rank: Rank, copies: tuple[Sink | None, Sink | None]) -> None:
        # Python has None for a stream that was closed when it started.
        consoles = [Sink(stream.fileno() if stream else None) for stream in (sys.stdout, sys.stderr)]
        assert self._guardian is not None
        process = _start_process(rank, signal.SIGTERM if self._guardian.is_there else signal.SIGKILL)
        self._guardian.watch(process.pid)
        streams = [
            RankStream(source, LinePrefixer(self._prefix(rank.label, name)), console, copy)
            for source, name, console, copy in zip(_pipes(process), ("stdout", "stderr"), consoles, copies, strict=True)
        ]
        self._alive.append(_Worker(number, process, streams))
        for stream in streams:
            self._selector.register(stream.source, selectors.EVENT_READ, stream)

    @property
    def stop_signal(self) -> int:
        """The signal that shall end the job; 0 for none."""
        return self._stop_signal

    def collect(self) -> list[tuple[int, int]]:
        """Pass on output for a moment; returns numbers and exit statuses of the ranks that have ended meanwhile."""
        self._pump()
        return [(number, code if code >= 0 else 128 - code) for number, code in self._reap_ended()]

    def end(self, number: int) -> None:
        """Ask one rank to end."""
        for worker in self._alive:
            if worker.rank == number:
                worker.signal(signal.SIGTERM)

    def end_all(self) -> None:
        """End all ranks that are left."""
        self._end_all(self._stop_signal or signal.SIGTERM)

    def _open_copies(self, rank_folder: str) -> tuple[Sink | None, Sink | None]:
        if self._folder is None:
            return None, None
        folder = self._folder / rank_folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            paths = folder / "stdout", folder / "stderr"
            out, err = (Sink(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), str(path)) for path in paths)
        except OSError as error:
            raise UsageError(
                f"--output-filename {self._folder}: cannot write {error.filename}: {error.strerror}; name a folder that "
                "exists or can be made"
            ) from error
        return out, err

    def _prefix(self, rank: int | None, name: str) -> Callable[[], bytes]:
        if rank is None:
            return lambda: b""
        tag = f"[{rank}]<{name}>:".encode()
        if not self._with_time:
            return lambda: tag
        # asctime rather than strftime: the form that log parsers know, in any locale.
        return lambda: time.asctime().encode() + tag

    def stop(self, signal_number: int) -> None:
        """Pass a signal on to the ranks, and end the job; a second one ends the grace.  Called by a signal handler.

        The signal goes out from here, as the rest of the launcher may be waiting for a console that nobody reads.
        """
        self._is_impatient = bool(self._stop_signal)
        self._stop_signal = self._stop_signal or signal_number
        self._signal_all(signal.SIGKILL if self._is_impatient else signal_number, again=self._is_impatient)

    def ask_recorder(self) -> None:
        """Have the flight recorders set aside what they have.  Called by a signal handler."""
        if not ask_one([worker.process.pid for worker in self._alive]):
            os.write(
                2, b"tl-run: SIGUSR2: no rank on this host has a flight recorder (HOROVOD_FLIGHT_RECORDER=FOLDER)\n"
            )

    def wait(self) -> int:
        """Pass on output until all ranks have ended.

        Returns:
            0 if all ended with 0; else the first failed rank's code, 128 + n if signal n ended it.
        """
        failed: tuple[int, int] | None = None
        while self._alive and failed is None and not self._stop_signal:
            self._pump()
            failed = self._reap()
        if failed is not None and not self._stop_signal:
            sys.stderr.write(f"Process {failed[0]} exit with status code {failed[1]}.\n")
            if self._alive:
                sys.stderr.write(f"Terminating remaining workers after failure of Process {failed[0]}.\n")
        self._end_all(self._stop_signal or signal.SIGTERM)
        if self._stop_signal:
            return 128 + self._stop_signal
        return failed[1] if failed is not None else 0

    def _reap(self) -> tuple[int, int] | None:
        """Let go of the ranks that have ended; the first failure among them, as rank and exit status."""
        failures = [(rank, code) for rank, code in self._reap_ended() if code]
        if not failures:
            return None
        # Of several since the last look, a rank that a signal ended is the cause, and one with an error more likely a
        # rank that lost its peer.
        rank, code = min(failures, key=lambda failure: (failure[1] > 0, failure[0]))
        return rank, code if code > 0 else 128 - code

    def _reap_ended(self) -> list[tuple[int, int]]:
        ended = []
        for worker in [worker for worker in self._alive if worker.has_ended()]:
            self._alive.remove(worker)
            for stream in worker.streams:
                with contextlib.suppress(KeyError):  # its end has been seen already
                    self._selector.unregister(stream.source)
            ended.append((worker.rank, worker.reap()))
            if self._guardian is not None:
                self._guardian.forget(worker.process.pid)
        return ended

    def _pump(self) -> None:
        if not self._selector.get_map():
            time.sleep(_POLL_S)
            return
        for key, _ in self._selector.select(_POLL_S):
            stream: RankStream = key.data
            if stream.pump() == 0:
                self._selector.unregister(stream.source)

    def _signal_all(self, number: int, *, again: bool = False) -> None:
        for worker in tuple(self._alive):
            if again or not worker.was_signalled:
                worker.was_signalled = True
                worker.signal(number)

    def _end_all(self, number: int) -> None:
        """Ask the ranks to end, kill those that do not listen, and what any of them leaves behind."""
        self._signal_all(number)
        deadline = time.monotonic() + GRACE_S
        while self._alive and not self._is_impatient and time.monotonic() < deadline:
            self._pump()
            self._reap()
        while self._alive:
            self._signal_all(signal.SIGKILL, again=True)
            self._pump()
            self._reap()
        if self._guardian is not None:
            self._guardian.dismiss()
        self._selector.close()


def _start_process(rank: Rank, last_signal: signal.Signals) -> subprocess.Popen[bytes]:
    launcher = os.getpid()
    process = subprocess.Popen(  # noqa: S603  running the user's command is the purpose
        rank.command,
        env=dict(rank.environment),
        stdin=subprocess.DEVNULL if rank.said is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: die_with(launcher, last_signal),  # noqa: PLW1509  a few plain system calls
    )
    if rank.said is not None and process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # its exit status says why
            process.stdin.write(rank.said)
            process.stdin.flush()
    return process


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdout is not None
    assert process.stderr is not None
    return process.stdout, process.stderr


_libc = ctypes.CDLL(None, use_errno=True)


def die_with(launcher: int, last_signal: signal.Signals = signal.SIGKILL) -> None:
    """Between fork and exec: get a signal when the launcher dies; if it has died already, do not start."""
    _libc.prctl(_PR_SET_PDEATHSIG, last_signal, 0, 0, 0)
    if os.getppid() != launcher:
        os._exit(1)
