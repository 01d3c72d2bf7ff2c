"""Runs a job of several ranks, each of which makes many checks.

A job is a file in `jobs/` that calls `make_checks`; the tests ask what came of each check on each rank.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..integration.ranks import RankResult, environment_of, fork_each, free_port, has_mpi
from .nurseries import ENVIRONMENT, nursery_of

JOBS = Path(__file__).with_name("jobs")
REPOSITORY = JOBS.parents[2]

#: Said by a check that was done.
FINE = "fine"

#: What mpirun starts for a rank that is forked elsewhere: says its environment, and is there until the rank has ended.
_STAND_IN = """
cd "$0"
env -0 > "unfinished.$OMPI_COMM_WORLD_RANK"
mv "unfinished.$OMPI_COMM_WORLD_RANK" "environment.$OMPI_COMM_WORLD_RANK"
read ended < ended || :
"""


def checks_of(job: str) -> list[str]:
    """Names of the checks that a job makes, from the end of its file."""
    return re.findall(r"\w+(?=,)", JOBS.joinpath(f"{job}.py").read_text().rpartition("for check in (")[2])


def make_checks(checks: Mapping[str, Callable[[], object]]) -> None:
    """Make the checks of a job in order, in a rank; their outcomes go to the test after each, whatever happens later."""
    chosen = os.environ["JOB_CHECKS"].split()
    for name, check in checks.items():
        if chosen and name not in chosen:
            continue
        try:
            said = check()
            outcome = FINE if said is None else said
        except Exception:
            outcome = traceback.format_exc()
        with Path(os.environ["JOB_ANSWERS"]).open("a") as file:
            file.write(json.dumps([name, outcome]) + "\n")


@contextmanager
def _environments(size: int, transport: str, folder: Path) -> Iterator[list[dict[str, str]]]:
    """What each rank finds in its environment; under mpirun, as long as this is entered."""
    if transport != "mpi":
        port = free_port()
        yield [environment_of(rank, size, port) for rank in range(size)]
        return
    assert has_mpi()
    inherited = {
        key: value for key, value in environment_of(0, 1, 0).items() if not key.startswith(("HOROVOD_", "MASTER_"))
    } | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [str(Path(sys.executable).with_name("mpirun")), "--oversubscribe", "--bind-to", "none", "-np", str(size)]
    os.mkfifo(folder / "ended")
    with subprocess.Popen([*command, "sh", "-c", _STAND_IN, str(folder)], env=inherited) as mpirun:
        try:
            paths = [folder / f"environment.{rank}" for rank in range(size)]
            while not all(path.exists() for path in paths):
                assert mpirun.poll() is None, "mpirun has ended"
                time.sleep(0.01)
            yield [dict(line.split("=", 1) for line in path.read_text().split("\0") if line) for path in paths]
            (folder / "ended").write_text("\n" * size)
            mpirun.wait(30)
        finally:
            mpirun.kill()


def run_script(
    path: Path,
    size: int,
    *arguments: str,
    backend: str = "tensorflow",
    transport: str = "shm",
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 480,
) -> list[RankResult]:
    """Run a script on several ranks, with Keras on `backend`; how they ended.

    Args:
        environment: for all ranks; `{rank}` in it is each one's own.
    """
    settings = {**ENVIRONMENT, "HOROVOD_CPU_OPERATIONS": transport, **(environment or {})}
    code = (
        f"import runpy, sys; sys.argv = {[str(path), *arguments]!r}; runpy.run_path({str(path)!r}, run_name='__main__')"
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        _environments(size, transport, Path(folder)) as environments,
    ):
        ranks = [
            {**of_rank, **{name: value.replace("{rank}", str(rank)) for name, value in settings.items()}}
            for rank, of_rank in enumerate(environments)
        ]
        return fork_each(code, ranks, timeout_s, nursery_of(backend))


def run_job(
    name: str,
    size: int,
    *arguments: str,
    backend: str = "tensorflow",
    transport: str = "shm",
    environment: Mapping[str, str] | None = None,
    checks: Sequence[str] = (),
) -> dict[str, list[object]]:
    """Run a job; returns what each rank said to each check.

    Args:
        checks: those that are made; all without.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = run_script(
            JOBS / f"{name}.py",
            size,
            *arguments,
            backend=backend,
            transport=transport,
            environment={
                **(environment or {}),
                "JOB_ANSWERS": f"{folder}/{{rank}}",
                "JOB_CHECKS": " ".join(checks),
            },
        )
        said: dict[str, list[object]] = {}
        for rank in range(size):
            file = Path(folder) / str(rank)
            for line in file.read_text().splitlines() if file.exists() else ():
                check, outcome = json.loads(line)
                said.setdefault(check, []).append(outcome)
    said["printed"] = [result.stdout + result.stderr for result in results]
    said["status"] = [result.returncode for result in results]
    return said


def expect_fine(said: Mapping[str, list[object]], check: str, ranks: int) -> None:
    """All ranks have made a check, and found nothing wrong."""
    outcomes = said.get(check, [])
    assert outcomes == [FINE] * ranks, "\n".join([*map(str, outcomes), *map(str, said["printed"])])
