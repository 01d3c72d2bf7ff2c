"""Flags, hosts and settings of `tl-run`, without starting anything."""

from pathlib import Path

import pytest

from tlkit.runtime.launch.cli import main
from tlkit.runtime.launch.hosts import parse_hosts, read_hostfile
from tlkit.runtime.launch.options import make_parser, read_config_file, settings_of
from tlkit.runtime.launch.placement import environments, place
from tlkit.timeline.errors import UsageError


def rank_environments(
    ranks: int, inherited: dict[str, str], settings: dict[str, str], port: int
) -> list[dict[str, str]]:
    """The environments of ranks on this machine."""
    return environments(place([("localhost", ranks)], ranks), inherited, settings, "127.0.0.1", port)


@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        (["--timeline-filename", "t.json"], {"HOROVOD_TIMELINE": "t.json"}),
        (["--timeline-mark-cycles"], {"HOROVOD_TIMELINE_MARK_CYCLES": "1"}),
        (["--no-timeline-mark-cycles"], {"HOROVOD_TIMELINE_MARK_CYCLES": "0"}),
        (["--fusion-threshold-mb", "32"], {"HOROVOD_FUSION_THRESHOLD": "33554432"}),
        (["--cycle-time-ms", "3.5"], {"HOROVOD_CYCLE_TIME": "3.5"}),
        (["--no-stall-check"], {"HOROVOD_STALL_CHECK_DISABLE": "1"}),
        (["--log-level", "DEBUG"], {"HOROVOD_LOG_LEVEL": "DEBUG"}),
        ([], {}),
    ],
)
def test_flags_become_settings(flags: list[str], variables: dict[str, str]) -> None:
    """Only those that were given."""
    assert settings_of(make_parser().parse_args([*flags, "-np", "2", "python"])) == variables


def test_everything_after_the_command_is_the_commands() -> None:
    """Its own flags are not ours."""
    arguments = make_parser().parse_args(["-np", "2", "python", "-v", "train.py", "--cycle-time-ms", "9"])

    assert arguments.command == ["python", "-v", "train.py", "--cycle-time-ms", "9"]
    assert settings_of(arguments) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["python", "x.py"], "Add -np N"),
        (["-np", "2"], "what to run?"),
        (["-np", "0", "python"], "at least one rank"),
        (["-np", "two", "python"], "invalid int value"),
        (
            ["-np", "3", "-H", "localhost:2", "python"],
            "Requested more processes (3) than there are available slots (2)",
        ),
        (["-np", "2", "-H", "a b", "python"], "worker-0:2,worker-1:2"),
        (["-np", "2", "--jsrun", "python"], "mpirun or srun"),
        (["-np", "2", "--cycle-time-ms", "-1", "python"], "cycle-time-ms=-1.0 must be >= 0"),
        (["-np", "2", "--log-level", "LOUD", "python"], "log-level=LOUD is not one of"),
        (["-np", "2", "--config-file", "/nowhere.yaml", "python"], "cannot read /nowhere.yaml"),
    ],
)
def test_wrong_usage_is_one_clear_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And status 2."""
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("tl-run: ")
    assert error.count("\n") == 1
    assert message in error


def test_host_files_may_have_comments_and_blank_lines(tmp_path: Path) -> None:
    """A line of another form is named."""
    path = tmp_path / "hosts"
    path.write_text("# cluster\n\nlocalhost slots=4  # here\nother\n")

    assert read_hostfile(str(path)) == [("localhost", 4), ("other", 1)]
    assert parse_hosts("a:2,b") == [("a", 2), ("b", 1)]
    path.write_text("localhost 4\n")
    with pytest.raises(UsageError, match="line 1: 'localhost 4' is not of the form"):
        read_hostfile(str(path))


def test_the_configuration_file_sets_what_flags_set_and_unknown_keys_are_named(tmp_path: Path) -> None:
    """Horovod ignores them silently."""
    path = tmp_path / "c.yaml"
    path.write_text(
        "params:\n  cycle_time_ms: 2\n  speed: 9\ntimeline:\n  filename: t.json\nstall_check:\n  enabled: false\n"
    )

    assert read_config_file(str(path)) == (
        {"HOROVOD_CYCLE_TIME": "2.0", "HOROVOD_TIMELINE": "t.json", "HOROVOD_STALL_CHECK_DISABLE": "1"},
        ["params.speed"],
    )


def test_a_stale_rank_in_the_environment_does_not_win() -> None:
    """Each rank gets its own, in Horovod's and in torchrun's names; the run id is common."""
    made = rank_environments(3, {"HOROVOD_RANK": "7", "RANK": "7", "KEEP": "x"}, {}, 1234)

    assert [environment["HOROVOD_RANK"] for environment in made] == ["0", "1", "2"]
    assert [environment["RANK"] for environment in made] == ["0", "1", "2"]
    assert {environment["HOROVOD_SIZE"] for environment in made} == {"3"}
    assert {environment["MASTER_PORT"] for environment in made} == {"1234"}
    assert {environment["KEEP"] for environment in made} == {"x"}
    assert len({environment["TLKIT_RUN_ID"] for environment in made}) == 1


def test_check_build_tells_the_truth(capsys: pytest.CaptureFixture[str]) -> None:
    """In the form that scripts look for."""
    assert main(["--check-build"]) == 0
    printed = capsys.readouterr().out

    assert "[X] PyTorch" in printed
    assert "[X] Gloo" in printed
    assert "[ ] NCCL" in printed
