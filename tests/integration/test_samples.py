"""Every sample is run as its first lines say, and the recorded traces get the verdicts that they were made for."""

import contextlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tlkit.collector import Analysis, analyze

from .ranks import REPOSITORY, TL_RUN, has_mpi, run_script

SAMPLES = REPOSITORY / "samples"


def load(name: str) -> ModuleType:
    """A script as a module."""
    found = importlib.util.spec_from_file_location(name, SAMPLES / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


RECORDED = load("record_traces").BOTTLENECKS


def run(folder: Path, command: list[str], timeline: str = "t.json") -> str:
    """What a command says, run in `folder` with a timeline there."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("HOROVOD_", "TLKIT_RUN", "OMPI_"))
    }
    environment |= {
        "HOROVOD_TIMELINE": str(folder / timeline), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }  # fmt: skip
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=150, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def tl_run(
    folder: Path, ranks: int, sample: str, *arguments: str, launcher: tuple[str, ...] = (), timeline: str = "t.json"
) -> str:
    """What a sample says; ranks that need nothing else of tl-run are forked."""
    if launcher:
        command = [*TL_RUN, "-np", str(ranks), *launcher]
        return run(folder, [*command, sys.executable, str(SAMPLES / sample), *arguments], timeline)
    with contextlib.chdir(folder):
        results = run_script(ranks, SAMPLES / sample, arguments, {"HOROVOD_TIMELINE": str(folder / timeline)})
    return "".join(result.stdout for result in results)


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_recorded_traces_get_their_verdicts(name: str) -> None:
    """Class and cause, from files of less than 300 KB."""
    folder = SAMPLES / "traces" / name
    assert sum(path.stat().st_size for path in folder.iterdir()) < 300_000
    verdict = analyze(folder / "t.json.gz").verdict
    assert (verdict.class_, verdict.cause) == (RECORDED[name].class_, RECORDED[name].cause or verdict.cause)


def test_no_recorded_trace_is_without_a_description() -> None:
    """And the other way round."""
    assert sorted(path.name for path in (SAMPLES / "traces").iterdir() if path.is_dir()) == sorted(RECORDED)


@pytest.mark.parametrize(("ranks", "sets"), [(4, "dynamic"), (4, "static"), (2, "mpi")])
def test_a_network_over_process_sets_learns_what_the_undivided_one_learns(
    tmp_path: Path, ranks: int, sets: str
) -> None:
    """Sets of all three kinds."""
    if sets == "mpi" and not has_mpi():
        pytest.skip("no MPI here")
    launcher = ("--mpi",) if sets == "mpi" else ()
    said = tl_run(tmp_path, ranks, "model_parallel.py", "--steps", "10", "--sets", sets, launcher=launcher)
    assert float(said.split("undivided network: ")[1].split()[0]) < 1e-6


def test_large_batches(tmp_path: Path) -> None:
    """Scaled, warmed up, with LARS."""
    said = tl_run(
        tmp_path, 2, "large_batch.py", "--lars", "--epochs", "1", "--images", "128", "--batches-per-step", "2"
    )
    assert "loss" in said
    assert len(analyze(tmp_path / "t.json").facts.steps.ranks) == 2


def test_elastic(tmp_path: Path) -> None:
    """As its first lines say, with a script that lists this host."""
    hosts = tmp_path / "hosts.sh"
    hosts.write_text("#!/bin/sh\necho localhost:2\n")
    hosts.chmod(0o755)
    launcher = ("--min-np", "1", "--max-np", "2", "--host-discovery-script", str(hosts))
    said = tl_run(tmp_path, 2, "elastic.py", "--epochs", "1", "--images", "128", launcher=launcher)
    assert "loss" in said


@pytest.mark.parametrize("arguments", [("--profile",), ("--fsdp",)])
def test_ddp_and_fsdp(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """With what torchrun tells its ranks."""
    results = run_script(
        2,
        SAMPLES / "ddp.py",
        ("--steps", "16", *arguments),
        {"HOROVOD_TIMELINE": str(tmp_path / "t.json")},
        as_torchrun=True,
    )
    assert results[0].stdout.startswith("16 steps on 2 ranks")
    files = sorted(tmp_path.glob("t.*json"))
    assert len(files) == (4 if "--profile" in arguments else 2)
    assert analyze(files).facts.trace.meta.runtime == "torch"


def waiting_for_data(analysis: Analysis) -> float:
    """Share of the steps."""
    parts = analysis.facts.breakdown.parts_ns
    return float(parts["data"].sum() / analysis.facts.breakdown.step_ns.sum())


def test_input_pipelines(tmp_path: Path) -> None:
    """TFRecord files; memory waits for data less than reading does."""
    pytest.importorskip("tfrecord")
    run(tmp_path, [sys.executable, str(SAMPLES / "input_pipelines.py"), "images", "--write", "4"])
    shares = {}
    for pipeline in ("serial", "workers", "cached"):
        said = tl_run(tmp_path, 2, "input_pipelines.py", "images", "--pipeline", pipeline, timeline=f"{pipeline}.json")
        assert f"{pipeline}: 20 steps on 2 ranks" in said
        shares[pipeline] = waiting_for_data(analyze(tmp_path / f"{pipeline}.json"))
    assert shares["cached"] < shares["serial"]


def test_the_notebook_runs(tmp_path: Path) -> None:
    """All cells, in a real kernel; the slow loader is found."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipywidgets")
    notebook = nbformat.read(SAMPLES / "diagnose.ipynb", as_version=4)
    code = "\n".join(
        [
            "import nbclient, nbformat, sys",
            f"notebook = nbformat.read({str(SAMPLES / 'diagnose.ipynb')!r}, as_version=4)",
            "nbclient.NotebookClient(notebook, timeout=120, kernel_name='python3').execute()",
            f"nbformat.write(notebook, {str(tmp_path / 'done.ipynb')!r})",
        ]
    )
    assert nbclient is not None
    assert len(notebook.cells) > 5
    run(tmp_path, [sys.executable, "-c", code])
    text = (tmp_path / "done.ipynb").read_text()
    assert "waits" in text
    assert "data loader" in text
    assert "application/vnd.plotly.v1+json" in text
    assert "application/vnd.jupyter.widget-view+json" in text
