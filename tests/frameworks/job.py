"""Runs a job of several ranks, each of which makes many checks: TensorFlow takes seconds to load, so it is loaded once.

A job is a file in `jobs/` that calls `make_checks`; the tests ask what came of each check on each rank.
"""

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from ..integration.ranks import environment_of, free_port, has_mpi

JOBS = Path(__file__).with_name("jobs")
REPOSITORY = JOBS.parents[2]

#: Said by a check that was done.
FINE = "fine"


def make_checks(checks: Mapping[str, Callable[[], object]]) -> None:
    """Make the checks of a job in order, in a rank; their outcomes go to the test after each, whatever happens later."""
    for name, check in checks.items():
        try:
            said = check()
            outcome = FINE if said is None else said
        except Exception:
            outcome = traceback.format_exc()
        with Path(os.environ["JOB_ANSWERS"]).open("a") as file:
            file.write(json.dumps([name, outcome]) + "\n")


def run_job(
    name: str,
    size: int,
    *arguments: str,
    transport: str = "gloo",
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 240,
) -> dict[str, list[object]]:
    """Run a job; returns what each rank said to each check."""
    settings = {
        "HOROVOD_CPU_OPERATIONS": transport,
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **(environment or {}),
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(JOBS / f"{name}.py"), *arguments]
        if transport == "mpi":
            assert has_mpi()
            inherited = {
                key: value
                for key, value in environment_of(0, 1, 0).items()
                if not key.startswith(("HOROVOD_", "MASTER_"))
            }
            mpirun = Path(sys.executable).with_name("mpirun")
            shell = ["sh", "-c", 'JOB_ANSWERS="$0/$OMPI_COMM_WORLD_RANK" exec "$@"', folder, *command]
            started = [
                subprocess.Popen(
                    [mpirun, "--oversubscribe", "--bind-to", "none", "-np", str(size), *shell],
                    env=inherited | settings,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            ]
        else:
            port = free_port()
            started = [
                subprocess.Popen(
                    command,
                    env=environment_of(rank, size, port) | settings | {"JOB_ANSWERS": f"{folder}/{rank}"},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                for rank in range(size)
            ]
        printed = []
        try:
            for process in started:
                try:
                    printed.append(process.communicate(timeout=timeout_s)[0])
                except subprocess.TimeoutExpired:
                    process.kill()
                    printed.append(f"took more than {timeout_s} s\n{process.communicate()[0]}")
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        said: dict[str, list[object]] = {}
        for rank in range(size):
            file = Path(folder) / str(rank)
            for line in file.read_text().splitlines() if file.exists() else ():
                check, outcome = json.loads(line)
                said.setdefault(check, []).append(outcome)
    said["printed"] = list(printed)
    said["status"] = [process.returncode for process in started]
    return said


def expect_fine(said: Mapping[str, list[object]], check: str, ranks: int) -> None:
    """All ranks have made a check, and found nothing wrong."""
    outcomes = said.get(check, [])
    assert outcomes == [FINE] * ranks, "\n".join([*map(str, outcomes), *map(str, said["printed"])])
