"""Starts real ranks, as processes of their own, and collects what they say."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

#: The launcher as it is without an installation.
TL_RUN = [sys.executable, "-m", "tlkit.runtime.launch.cli"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankResult:
    """How one rank ended."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def answer(self) -> Any:
        """What the script handed to `answer()`."""
        for line in reversed(self.stdout.splitlines()):
            if line.startswith("ANSWER "):
                return json.loads(line.removeprefix("ANSWER "))
        raise AssertionError(f"no answer:\n{self.stdout}\n{self.stderr}")


_PREAMBLE = """
import json, os, sys, time
import torch
import tlkit.runtime.torch as hvd
torch.set_num_threads(1)

def answer(value):
    print("ANSWER " + json.dumps(value), flush=True)
"""


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def environment_of(rank: int, size: int, port: int) -> dict[str, str]:
    """What a launcher sets for one rank."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOROVOD_", "OMPI_", "PMIX_", "TLKIT_"))
    }
    return inherited | {
        "PYTHONPATH": str(REPOSITORY),
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": str(rank),
        "HOROVOD_LOCAL_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def start_ranks(size: int, script: str, environment: Mapping[str, str] | None = None) -> list[subprocess.Popen[str]]:
    """Start `size` ranks that run `script`, with `hvd`, `torch` and `answer` at hand."""
    port = free_port()
    code = _PREAMBLE + textwrap.dedent(script)
    return [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment_of(rank, size, port) | dict(environment or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def finish_ranks(processes: list[subprocess.Popen[str]], timeout_s: float = 90) -> list[RankResult]:
    """Wait for ranks; those that do not end are killed, and the test fails."""
    results = []
    try:
        for process in processes:
            stdout, stderr = process.communicate(timeout=timeout_s)
            results.append(RankResult(returncode=process.returncode, stdout=stdout, stderr=stderr))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return results


@dataclass(frozen=True, kw_only=True, slots=True)
class Nursery:
    """What ranks have when they are forked."""

    modules: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    """What these modules read when they are imported."""


#: The first optimizer of a process imports torch._dynamo, which takes as long as torch.
_TORCH = Nursery(modules=("torch._dynamo", "tlkit.runtime.torch"))


@cache
def _process_of(nursery: Nursery) -> subprocess.Popen[str]:
    """The process that ranks are forked from; it ends with this one."""
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("nursery.py")), *nursery.modules],
        env=environment_of(0, 1, 0) | dict(nursery.environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run_ranks(
    size: int,
    script: str,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 90,
) -> list[RankResult]:
    """Run `script` on `size` ranks; all must end with 0."""
    if any(name.startswith(("NVTX_", "LD_", "OMP_")) for name in environment or {}):
        # Libraries read these when they are loaded, which they are in the nursery.
        results = finish_ranks(start_ranks(size, script, environment), timeout_s)
    else:
        results = fork_ranks(size, script, environment or {}, timeout_s)
    for rank, result in enumerate(results):
        assert result.returncode == 0, f"rank {rank}:\n{result.stdout}\n{result.stderr}"
    return results


def fork_ranks(
    size: int, script: str, environment: Mapping[str, str], timeout_s: float = 90, nursery: Nursery = _TORCH
) -> list[RankResult]:
    """Run `script` on `size` ranks that are forked from one process which has torch; they may end as they like, in time."""
    port = free_port()
    environments = [environment_of(rank, size, port) | dict(environment) for rank in range(size)]
    return fork_each(_PREAMBLE + textwrap.dedent(script), environments, timeout_s, nursery)


def fork_each(
    code: str, environments: Sequence[Mapping[str, str]], timeout_s: float, nursery: Nursery
) -> list[RankResult]:
    """Run `code` in each environment, in processes forked from one that has what it needs; they may end as they like, in time."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            {
                "code": code,
                "environment": dict(environment),
                "stdout": f"{folder}/{rank}.out",
                "stderr": f"{folder}/{rank}.err",
            }
            for rank, environment in enumerate(environments)
        ]
        process = _process_of(nursery)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"cwd": str(Path.cwd()), "timeout_s": timeout_s, "ranks": ranks}) + "\n")
        process.stdin.flush()
        try:
            ended = json.loads(process.stdout.readline())
        except BaseException:
            # The test's own time is over.  The answer would be taken for that of the next one.
            for each in (*psutil.Process(process.pid).children(recursive=True), process):
                each.kill()
            _process_of.cache_clear()
            raise
        said = [[Path(str(rank[stream])).read_text() for stream in ("stdout", "stderr")] for rank in ranks]
    assert None not in ended, f"ranks did not end within {timeout_s:g} s ({ended}):\n{said}"
    return [
        RankResult(returncode=code, stdout=stdout, stderr=stderr)
        for code, (stdout, stderr) in zip(ended, said, strict=True)
    ]


_AS_TORCHRUN = """
    for name in ("RANK", "LOCAL_RANK"):
        os.environ[name] = os.environ.pop(f"HOROVOD_{name}")
    for name in ("SIZE", "LOCAL_SIZE"):
        os.environ[name.replace("SIZE", "WORLD_SIZE")] = os.environ.pop(f"HOROVOD_{name}")
"""


def run_script(
    size: int,
    script: Path,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    *,
    as_torchrun: bool = False,
) -> list[RankResult]:
    """Run a training script with its arguments as `tl-run` or torchrun does, in less time; all ranks must end with 0."""
    code = f"""
    {_AS_TORCHRUN if as_torchrun else ""}
    import runpy
    sys.argv = [{str(script)!r}, *{list(arguments)!r}]
    sys.path.insert(0, {str(script.parent)!r})
    runpy.run_path({str(script)!r}, run_name="__main__")
    """
    return run_ranks(size, code, environment, timeout_s=150)


def has_mpi() -> bool:
    """Whether mpi4py and an mpirun are here."""
    return find_spec("mpi4py") is not None and _mpirun() is not None


def _mpirun() -> str | None:
    return shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")


def run_mpi_ranks(
    size: int, script: str, environment: Mapping[str, str] | None = None, timeout_s: float = 90
) -> list[object]:
    """Run `script` on `size` ranks that mpirun starts; returns what each rank has handed to `answer`, in any order."""
    inherited = {
        name: value for name, value in environment_of(0, 1, 0).items() if not name.startswith(("HOROVOD_", "MASTER_"))
    }
    settings = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [str(_mpirun()), "--oversubscribe", "--bind-to", "none", "-np", str(size)]
    ended = subprocess.run(
        [*command, sys.executable, "-c", _PREAMBLE + textwrap.dedent(script)],
        env=inherited | settings | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return [
        json.loads(line.removeprefix("ANSWER ")) for line in ended.stdout.splitlines() if line.startswith("ANSWER ")
    ]


def run_anywhere(transport: str, size: int, script: str, environment: Mapping[str, str] | None = None) -> list[object]:
    """Run `script` on ranks that talk over `transport`; returns their answers."""
    if transport == "mpi":
        if not has_mpi():
            pytest.skip("no MPI here")
        return run_mpi_ranks(size, script, {"HOROVOD_CPU_OPERATIONS": "mpi", **(environment or {})})
    return [
        result.answer
        for result in run_ranks(size, script, {"HOROVOD_CPU_OPERATIONS": transport, **(environment or {})})
    ]
