"""`run`: a function of a script or notebook on several ranks; and what else starts ranks."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from .ranks import TL_RUN, environment_of, has_mpi

_SCRIPT = """
import horovod

def work(base, *, factor):
    import horovod.torch as hvd
    import torch
    hvd.init()
    if base < 0 and hvd.rank() == 1:
        raise KeyError("no such thing")
    return hvd.rank(), hvd.allreduce(torch.tensor([base]), op=hvd.Sum).item() * factor

if __name__ == "__main__":
    print("GOT", horovod.run(work, args=(5,), kwargs={"factor": 3}, num_proc=2))
    import horovod.runner
    try:
        horovod.runner.run(work, args=(-1,), kwargs={"factor": 1}, np=2)
    except RuntimeError as error:
        print("ERROR", "no such thing" in str(error) and "KeyError" in str(error))
"""


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    kept = {
        name: value
        for name, value in environment_of(0, 1, 0).items()
        if not name.startswith(("HOROVOD_", "MASTER_")) and name != "RANK"
    }
    return subprocess.run(command, env=kept, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_a_function_of_the_main_module_runs_on_ranks(tmp_path: Path) -> None:
    """Results come in rank order; an error brings its traceback; the older names of arguments work."""
    (tmp_path / "script.py").write_text(textwrap.dedent(_SCRIPT))
    ended = _run([sys.executable, "-W", "default", "script.py"], tmp_path)

    assert "GOT [(0, 30), (1, 30)]" in ended.stdout, ended.stdout + ended.stderr
    assert "ERROR True" in ended.stdout, ended.stdout + ended.stderr
    assert "np is deprecated, use num_proc" in ended.stderr


@pytest.mark.parametrize("module", ["horovod", "horovod.runner.launch", "tlkit.runtime.launch.cli"])
def test_the_launcher_as_a_module(module: str, tmp_path: Path) -> None:
    """`python -m horovod` and `python -m horovod.runner.launch` are tl-run."""
    ended = _run([sys.executable, "-m", module, "--check-build"], tmp_path)

    assert "[X] PyTorch" in ended.stdout, ended.stderr


@pytest.mark.skipif(not has_mpi(), reason="no MPI here")
def test_mpirun_starts_the_ranks_when_asked(tmp_path: Path) -> None:
    """Data goes over MPI, lines are tagged as Horovod's are under mpirun, the status is the failed rank's."""
    (tmp_path / "script.py").write_text(
        "import sys, torch, horovod.torch as hvd\n"
        "hvd.init()\n"
        "print('TOTAL', hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), hvd.mpi_enabled(), hvd.gloo_enabled())\n"
        "hvd.shutdown()\n"
        "sys.exit(5 if len(sys.argv) > 1 and hvd.mpi_built() else 0)\n"
    )
    command = [*TL_RUN, "-np", "2", "--mpi", sys.executable, "script.py"]
    ended = _run(command, tmp_path)

    assert ended.returncode == 0, ended.stderr
    assert sorted(line for line in ended.stdout.splitlines() if "TOTAL" in line) == [
        "[1,0]<stdout>: TOTAL 2.0 True False",
        "[1,1]<stdout>: TOTAL 2.0 True False",
    ]
    assert _run([*command, "fail"], tmp_path).returncode == 5
