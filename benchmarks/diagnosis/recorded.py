"""Trains once and keeps what the analysis reads, and, apart from it, what the steps really took.

A recorded run is a folder:

    trace/             the timelines, or the profiler's traces
    times.rank0.json   when each step ended, as the loop saw it
    run.json           how the run was started, and how busy other programs kept the machine
"""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import hosts

FOLDER = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
WARM_UP = 5
"""Steps that are not steady yet.  The last one is left out, too: a profiler writes its file in it."""
TIMEOUT_S = 240


class TrainingFailed(Exception):
    """A run did not end well; the message holds what it said."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training on one machine."""

    ranks: int = 2
    recorder: str = "hvd"
    """`hvd`: our runtime; `instrument` and `profiler`: DDP under tlkit.instrument() or torch.profiler."""
    script: str = "train.py"
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    limit: str | None = None
    """Two hosts; the arguments of `tc qdisc add` for the link between them."""
    has_load: bool = False
    """Whether a loop of the lowest priority runs on each core at the same time."""


def record(job: Job, folder: Path) -> None:
    """Run `job` and keep its traces in `folder`, which must not exist.

    Raises:
        TrainingFailed: it exited with another status than 0, or took longer than TIMEOUT_S.
    """
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    (unfinished / "trace").mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        if job.has_load:
            stack.enter_context(load())
        command, settings = _command(job, unfinished)
        if job.limit is not None:
            settings |= stack.enter_context(hosts.two_hosts(job.limit))
        own_s, busy_s, began_s = _own_seconds(), _busy_seconds(), time.monotonic()
        status, output = _run(command, settings)
        wall_s = time.monotonic() - began_s
        others = (_busy_seconds() - busy_s - (_own_seconds() - own_s)) / (wall_s * (os.cpu_count() or 1))
    if status:
        raise TrainingFailed(f"exit status {status}: {output[-2000:]}")
    about = {
        "command": command,
        "environment": job.environment,
        "has_load": job.has_load,
        "wall_s": round(wall_s, 1),
        "others_busy_ratio": round(max(0.0, others), 3),
        "mean_step_ms": round(mean_step_ms(unfinished), 3),
    }
    (unfinished / "run.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    unfinished.rename(folder)


def _run(command: list[str], settings: dict[str, str]) -> tuple[int, str]:
    """The exit status of a launcher, and what its ranks printed."""
    launcher = subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = launcher.communicate(timeout=TIMEOUT_S)
    except BaseException as error:
        # It ends its ranks when it is asked to, which are in sessions of their own.
        launcher.terminate()
        try:
            launcher.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            launcher.kill()
        if isinstance(error, subprocess.TimeoutExpired):
            raise TrainingFailed(f"still running after {TIMEOUT_S} s: {' '.join(command)}") from None
        raise
    return launcher.returncode, output


def _command(job: Job, folder: Path) -> tuple[list[str], dict[str, str]]:
    """What to start, and its environment."""
    settings = {**os.environ, "OMP_NUM_THREADS": "1", **job.environment}
    arguments = [str(FOLDER / job.script), "--times", str(folder), *job.arguments]
    if job.recorder != "hvd":
        arguments += ["--ddp", str(folder / "trace"), *["--instrument"] * (job.recorder == "instrument")]
        return [str(BIN / "torchrun"), "--nproc-per-node", str(job.ranks), *arguments], settings
    settings["HOROVOD_TIMELINE"] = str(folder / "trace" / "t.json")
    launch = [str(BIN / "tl-run"), "-np", str(job.ranks)]
    if job.limit is not None:
        launch += ["-H", ",".join(f"{address}:1" for address in hosts.ADDRESSES)]
    return [*launch, sys.executable, *arguments], settings


def trace_of(folder: Path) -> Path:
    """What the analysis is given of a recorded run."""
    return folder / "trace"


def is_recorded(folder: Path) -> bool:
    """Whether the run is there and complete."""
    return (folder / "run.json").exists()


def step_times_ms(folder: Path) -> list[list[float]]:
    """Per rank how long each step took, in ms, warm-up and last step left out."""
    ranks = []
    for path in sorted(folder.glob("times.rank*.json")):
        ends_ns = json.loads(path.read_text(encoding="utf-8"))["ends_ns"]
        steps = [(end - begin) / 1e6 for begin, end in pairwise(ends_ns)]
        ranks.append(steps[WARM_UP:-1])
    if not ranks:
        raise TrainingFailed(f"{folder}: no rank has written its times")
    return ranks


def mean_step_ms(folder: Path) -> float:
    """The mean step of the slowest rank, in ms."""
    return max(statistics.fmean(steps) for steps in step_times_ms(folder))


@contextlib.contextmanager
def load() -> Iterator[None]:
    """A busy loop of the lowest priority on each core."""
    loops = []
    try:
        for core in range(os.cpu_count() or 1):
            code = f"import os\nos.sched_setaffinity(0, {{{core}}})\nos.nice(19)\nwhile True: pass"
            loops.append(subprocess.Popen([sys.executable, "-c", code], start_new_session=True))
            # Linux shares cores among sessions first, each with a niceness of its own, where it groups by session.
            with contextlib.suppress(OSError):
                Path(f"/proc/{loops[-1].pid}/autogroup").write_text("19", encoding="ascii")
        yield
    finally:
        for process in loops:
            process.kill()
            process.wait()


def _own_seconds() -> float:
    """CPU seconds of the processes that this one has started and waited for."""
    times = os.times()
    return times.children_user + times.children_system


def _busy_seconds() -> float:
    """CPU seconds of the whole machine, all cores, not idle."""
    total = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    user, nice, system, _, _, irq, softirq, *_ = map(int, total.split()[1:])
    return float(user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def record_all(runs: Sequence[tuple[str, Job, Path]], say: Callable[[str], None]) -> int:
    """Record what is not there yet, in this order, whatever fails; returns how many runs failed."""
    failed = 0
    for number, (name, job, folder) in enumerate(runs, start=1):
        if is_recorded(folder):
            continue
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            record(job, folder)
        except TrainingFailed as error:
            failed += 1
            say(f"{number}/{len(runs)} {name}: FAILED: {error}")
            continue
        about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        say(f"{number}/{len(runs)} {name}: {about['mean_step_ms']:.1f} ms a step, {about['wall_s']:.0f} s")
    return failed
