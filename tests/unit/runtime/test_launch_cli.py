"""What tl-run decides before it starts anything."""

import os
from importlib import util
from pathlib import Path
from types import SimpleNamespace

import pytest

from tlkit import __version__
from tlkit.runtime.core.topology import read_launched
from tlkit.runtime.launch import check_build, cli
from tlkit.runtime.launch.cli import main
from tlkit.runtime.launch.placement import environments, place


def rank_environments(
    ranks: int, inherited: dict[str, str], settings: dict[str, str], port: int
) -> list[dict[str, str]]:
    """The environments of ranks on this machine."""
    return environments(place([("localhost", ranks)], ranks), inherited, settings, "127.0.0.1", port)


def test_every_rank_is_told_who_it_is() -> None:
    """Horovod's and torchrun's names agree, and what a parent job left behind does not count."""
    stale = {"HOROVOD_RANK": "7", "RANK": "7", "WORLD_SIZE": "8", "MASTER_PORT": "1", "PATH": "/bin"}
    made = rank_environments(3, stale, {"HOROVOD_CYCLE_TIME": "2"}, 29500)

    assert len({environment["TLKIT_RUN_ID"] for environment in made}) == 1
    for rank, environment in enumerate(made):
        expected = {
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": "3",
            "HOROVOD_LOCAL_RANK": str(rank),
            "HOROVOD_LOCAL_SIZE": "3",
            "HOROVOD_CROSS_RANK": "0",
            "HOROVOD_CROSS_SIZE": "1",
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": "29500",
            "HOROVOD_CYCLE_TIME": "2",
            "RANK": str(rank),
            "WORLD_SIZE": "3",
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": "3",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "PYTHONUNBUFFERED": "1",
            "PATH": "/bin",
        }
        assert expected.items() <= environment.items()


def test_the_runtime_recognises_its_launcher() -> None:
    """What tl-run sets is what the runtime reads."""
    launched = read_launched(rank_environments(2, {}, {}, 29500)[1])

    assert (launched.launcher, launched.rank, launched.size, launched.local_rank) == ("tl-run", 1, 2, 1)
    assert (launched.master_address, launched.master_port) == ("127.0.0.1", 29500)


@pytest.mark.parametrize(("ranks", "threads"), [(1, "8"), (3, "2"), (16, "1")])
def test_ranks_share_the_cores(ranks: int, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets its part of the cores that this process may use, and at least one thread; a wish is respected."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))

    assert rank_environments(ranks, {}, {}, 1)[0]["OMP_NUM_THREADS"] == threads
    assert rank_environments(ranks, {"OMP_NUM_THREADS": "5"}, {}, 1)[0]["OMP_NUM_THREADS"] == "5"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-np", "2", "--"], "Add a command"),
        (["-np", "2", "--jsrun", "true"], "mpirun"),
        (["-np", "2", "-H", "localhost:2", "-hostfile", "h", "true"], "exclude each other"),
    ],
)
def test_wrong_usage_is_one_clear_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is 2, the line says what to do, and nothing has been started."""
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert complaint in told.err
    assert told.err.startswith("tl-run: ")
    assert told.err.count("\n") == 1
    assert told.out == ""


def test_a_script_without_its_interpreter_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is no program is 126 and a name that is nothing 127, as in a shell."""
    monkeypatch.setattr(cli, "find_spec", lambda _: object())
    script = tmp_path / "train.py"
    script.write_text("print(1)")

    assert main(["-np", "1", str(script)]) == 126
    assert f"did you mean `tl-run … python {script}`?" in capsys.readouterr().err
    assert main(["-np", "1", str(tmp_path / "none")]) == 127
    assert "no such command" in capsys.readouterr().err


@pytest.mark.parametrize("has_torch", [True, False])
def test_check_build_tells_the_truth(
    has_torch: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch and Gloo are there if torch is; MPI and NCCL if what they need is."""
    there = {"torch", "mpi4py"} if has_torch else {"mpi4py"}
    monkeypatch.setattr(check_build, "find_spec", lambda name: SimpleNamespace(origin=None) if name in there else None)
    native = "tlkit.runtime.torch.data_plane.transports.shared_memory._native"
    compiled = ["[X] shared memory"] if util.find_spec("torch") and util.find_spec(native) else []

    assert main(["--check-build"]) == 0
    table = capsys.readouterr().out
    marked = [line.strip() for line in table.splitlines() if "[X]" in line]
    assert marked == (["[X] PyTorch", "[X] MPI", "[X] Gloo", "[X] MPI", "[X] Gloo", *compiled] if has_torch else [])
    assert table.count("[ ]") == 13 - len(marked)


def test_the_version_is_the_toolkits(capsys: pytest.CaptureFixture[str]) -> None:
    """-v prints it and leaves."""
    with pytest.raises(SystemExit) as left:
        main(["-v"])

    assert left.value.code == 0
    assert capsys.readouterr().out == f"tl-run {__version__}\n"


@pytest.mark.skipif(util.find_spec("torch") is None, reason="unknown keys are told on the way to starting ranks")
def test_unknown_keys_of_the_configuration_file_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A key with a slip in it would otherwise be a setting that silently does nothing."""
    path = tmp_path / "config.yaml"
    path.write_text("timeline: {file: t.json}")
    main(["-np", "1", "--config-file", str(path), str(tmp_path / "none")])

    assert f"tl-run: {path}: timeline.file is not a setting and has no effect" in capsys.readouterr().err
