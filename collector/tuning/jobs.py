"""The jobs of a tuning: the user's command with other settings, started as a process and stopped if it takes too long."""

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from ...timeline.errors import UsageError
from ...timeline.trials import (
    SETTINGS_VARIABLE,
    TRIAL_VARIABLE,
    Block,
    RankTrial,
    TrialPlan,
    encode_plan,
    format_settings,
    parse_settings,
    read_trials,
)
from .losses import mean_losses
from .settings import Candidate
from .statistics import step_times, warm_up_of

#: How long a job has to end after it was asked to.
GRACE_S: Final = 15.0
#: Of linux/prctl.h.
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
#: How often it is looked at.
_LOOK_S: Final = 0.1
#: What a trial does without: recording costs time, and somebody else's tuning changes what is measured.
_LEFT_OUT: Final = ("HOROVOD_TIMELINE", "HOROVOD_FLIGHT_RECORDER", "HOROVOD_AUTOTUNE", TRIAL_VARIABLE)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobResult:
    """How a job went."""

    trials: list[RankTrial]
    """Of the ranks that have left an answer."""
    status: int
    last_line: str
    """Of its output: of a job that failed, most often why."""
    wall_s: float
    timed_out: bool

    @property
    def failed(self) -> bool:
        """Whether it failed, or no steps were counted."""
        return self.timed_out or self.status != 0 or not self.trials

    @property
    def why(self) -> str:
        """Of a job that failed, in a few words."""
        if self.timed_out:
            return f"the job had not ended after {self.wall_s:.0f} s"
        if self.status:
            return f"the job failed: {self.last_line or f'exit status {self.status}'}"
        return "the job counted no steps"

    @property
    def steps_ns(self) -> np.ndarray:
        """Durations of the steps that count: float64[step]."""
        ends = [trial.ends_ns for trial in self.trials]
        return step_times(ends, warm_up_of(min(map(len, ends), default=0)))

    @property
    def step_ns(self) -> float:
        """The mean step: what the throughput goes by."""
        steps = self.steps_ns
        return float(steps.mean()) if len(steps) else float("nan")

    @property
    def losses(self) -> list[float | None]:
        """By step."""
        return mean_losses([trial.losses for trial in self.trials])


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """What the user runs."""

    words: tuple[str, ...]
    np: int | None
    """Ranks that tl-run starts; None where the command starts its ranks itself, or is one."""

    @property
    def is_launched_here(self) -> bool:
        """Whether tl-run starts the ranks, so that its flags can be added."""
        return self.np is not None or Path(self.words[0]).name in {"tl-run", "horovodrun"}

    def shown(self, *, mpi: bool) -> str:
        """As people type it."""
        flags = ["--mpi"] if mpi else []
        if self.np is not None:
            return shlex.join(["tl-run", "-np", str(self.np), *flags, *self.words])
        return shlex.join([self.words[0], *flags, *self.words[1:]])

    def line(self, *, mpi: bool) -> list[str]:
        """What is started."""
        run = [sys.executable, "-m", "tlkit.runtime.launch.cli"]
        flags = ["--mpi"] if mpi else []
        if self.np is not None:
            return [*run, "-np", str(self.np), *flags, *self.words]
        if self.is_launched_here:
            return [*run, *flags, *self.words[1:]]
        return list(self.words)


def environment_with(candidates: Sequence[Candidate], inherited: Mapping[str, str]) -> dict[str, str]:
    """What has to be set so that all `candidates` hold; what is inherited of TLKIT_SETTINGS stays below them.

    Raises:
        UsageError: TLKIT_SETTINGS is wrong already.
    """
    settings = parse_settings(inherited.get(SETTINGS_VARIABLE, ""))
    environment: dict[str, str] = {}
    for candidate in candidates:
        settings |= candidate.settings
        environment |= candidate.environment
    return environment | ({SETTINGS_VARIABLE: format_settings(settings)} if settings else {})


class Runner(Protocol):
    """Runs one job after the other (see `Jobs.run`)."""

    def run(
        self,
        candidates: Sequence[Candidate],
        *,
        steps: int,
        limit_s: float,
        blocks: Sequence[Block] = (),
        timeline: Path | None = None,
        on_look: Callable[[], None] = lambda: None,
    ) -> JobResult:
        """Run the command with settings."""


class Jobs:
    """Runs jobs one after the other, each in a folder of its own."""

    def __init__(self, command: Command, folder: Path, seed: int, inherited: Mapping[str, str] | None = None) -> None:
        self.command = command
        self.folder = folder
        self.count = 0
        self._seed = seed
        self._inherited = dict(os.environ if inherited is None else inherited)

    def run(
        self,
        candidates: Sequence[Candidate],
        *,
        steps: int,
        limit_s: float,
        blocks: Sequence[Block] = (),
        timeline: Path | None = None,
        on_look: Callable[[], None] = lambda: None,
    ) -> JobResult:
        """Run the command with settings.

        Args:
            candidates: the settings that hold from the start.
            steps: after which the job ends.
            limit_s: it is stopped after so long.
            blocks: settings that change while it runs.
            timeline: where it is recorded; None for not.
            on_look: called several times a second.

        Raises:
            UsageError: the command cannot be started.
        """
        self.count += 1
        folder = self.folder / f"job{self.count}"
        folder.mkdir(parents=True)
        plan = TrialPlan(folder=str(folder), steps=steps, seed=self._seed, blocks=list(blocks))
        environment = {name: value for name, value in self._inherited.items() if name not in _LEFT_OUT}
        environment |= environment_with(candidates, self._inherited) | {TRIAL_VARIABLE: encode_plan(plan)}
        if timeline is not None:
            environment["HOROVOD_TIMELINE"] = str(timeline)
        line = self.command.line(mpi=any(candidate.mpi for candidate in candidates))
        begun_s, parent = time.monotonic(), os.getpid()
        with (folder / "output.txt").open("wb") as output:
            try:
                process = subprocess.Popen(  # noqa: S603  running the user's command is the purpose
                    line,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=lambda: _end_with(parent),  # noqa: PLW1509  two plain system calls
                )
            except OSError as error:
                raise UsageError(f"cannot start {line[0]}: {error.strerror}") from error
            try:
                timed_out = _wait(process, limit_s, on_look)
            finally:
                _stop(process)
        return JobResult(
            trials=_of_one_job(read_trials(folder)),
            status=process.returncode,
            last_line=_last_line(folder / "output.txt"),
            wall_s=time.monotonic() - begun_s,
            timed_out=timed_out,
        )


def _end_with(parent: int) -> None:
    """Have this process asked to end when `parent` is gone, even if that was killed: a job shall not outlive its tuning."""
    if _LIBC is None:
        return
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it is gone already
        os.kill(os.getpid(), signal.SIGTERM)


def _of_one_job(trials: list[RankTrial]) -> list[RankTrial]:
    """Only ranks that have counted something."""
    return [trial for trial in trials if trial.ends_ns]


def _wait(process: "subprocess.Popen[bytes]", limit_s: float, on_look: Callable[[], None]) -> bool:
    """Wait for the job; returns whether it takes too long."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_S)
            return False
        on_look()
    return True


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End the job and whatever it has started, as gently as that goes."""
    for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        if process.poll() is not None:
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # loader workers that a rank has left behind


def _last_line(path: Path) -> str:
    """What a job has said last, its launcher left aside."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - 65536, 0))
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith(("tl-run:", "--------", "mpirun"))]
    return (own or lines or [""])[-1][:300]
