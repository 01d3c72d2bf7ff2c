"""Flags and configuration file of tl-run."""

from pathlib import Path

import pytest

from tlkit.runtime.launch.options import make_parser, read_config_file, settings_of
from tlkit.timeline.errors import UsageError


def settings(*flags: str) -> dict[str, str]:
    """What the flags set."""
    return settings_of(make_parser().parse_args([*flags, "-np", "1", "true"]))


def config_file(folder: Path, text: str) -> str:
    """A configuration file with this text."""
    path = folder / "config.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], {}),
        (["--timeline-filename", "t.json"], {"HOROVOD_TIMELINE": "t.json"}),
        (["--timeline-mark-cycles"], {"HOROVOD_TIMELINE_MARK_CYCLES": "1"}),
        (["--no-timeline-mark-cycles"], {"HOROVOD_TIMELINE_MARK_CYCLES": "0"}),
        (["--fusion-threshold-mb", "32"], {"HOROVOD_FUSION_THRESHOLD": "33554432"}),
        (["--cycle-time-ms", "3.5"], {"HOROVOD_CYCLE_TIME": "3.5"}),
        (["--cache-capacity", "0"], {"HOROVOD_CACHE_CAPACITY": "0"}),
        (["--no-stall-check"], {"HOROVOD_STALL_CHECK_DISABLE": "1"}),
        (["--stall-check"], {"HOROVOD_STALL_CHECK_DISABLE": "0"}),
        (["--stall-check-warning-time-seconds", "5"], {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5"}),
        (["--stall-check-shutdown-time-seconds", "9"], {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9"}),
        (
            ["--log-level", "DEBUG", "--log-without-timestamp"],
            {"HOROVOD_LOG_LEVEL": "DEBUG", "HOROVOD_LOG_HIDE_TIME": "1"},
        ),
        (["--start-timeout", "7"], {"HOROVOD_START_TIMEOUT": "7"}),
        (["--thread-affinity", "2"], {"HOROVOD_THREAD_AFFINITY": "2"}),
        (["--autotune", "--autotune-log-file", "a"], {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": "a"}),
        (
            ["--network-interface", "lo", "--network-interface", "eth0"],
            {"HOROVOD_GLOO_IFACE": "lo", "NCCL_SOCKET_IFNAME": "lo,eth0"},
        ),
        (["--network-interfaces", "ib0,eth0"], {"HOROVOD_GLOO_IFACE": "ib0", "NCCL_SOCKET_IFNAME": "ib0,eth0"}),
    ],
)
def test_a_flag_sets_the_variable_that_the_runtime_reads(flags: list[str], expected: dict[str, str]) -> None:
    """Only what was asked for is set, so that the caller's environment counts for the rest."""
    assert expected == settings(*flags)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--cycle-time-ms", "-1"], "cycle-time-ms=-1.0 must be >= 0"),
        (["--cycle-time-ms", "nan"], "cycle-time-ms=nan is not a number"),
        (["--cache-capacity", "many"], "invalid int value: 'many'"),
        (["--autotune-gaussian-process-noise", "1.5"], "must be <= 1"),
        (["--log-level", "LOUD"], "log-level=LOUD is not one of TRACE"),
        (["--gloo", "--mpi"], "not allowed with"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
    ],
)
def test_values_that_make_no_sense_are_refused(flags: list[str], complaint: str) -> None:
    """The message names flag and value."""
    with pytest.raises(UsageError, match=complaint):
        settings(*flags)


@pytest.mark.parametrize(
    "flags",
    [
        ["-p", "22", "-i", "key"],
        ["--disable-cache", "--tcp", "--mpi-args", "x", "--binding-args", "y"],
        ["--max-num-proc", "4", "--slots", "2", "--elastic-timeout", "9", "--reset-limit", "1"],
        ["--blacklist-cooldown-range", "1", "9"],
    ],
)
def test_flags_of_horovodrun_that_change_nothing_here_are_known(flags: list[str]) -> None:
    """A command line need not be rewritten for them."""
    assert settings(*flags) == {}


def test_the_configuration_file_sets_the_same_variables(tmp_path: Path) -> None:
    """Every section counts, and keys that mean nothing are handed back."""
    path = config_file(
        tmp_path,
        """
        controller: gloo
        params: {fusion_threshold_mb: 2, cycle_time_ms: 0.5}
        timeline: {filename: t.json, mark_cycles: true}
        stall_check: {enabled: false, warning_time_seconds: 5}
        logging: {level: debug, with_timestamp: false, hide_timestamp: true}
        tensors: 3
        """,
    )

    assert read_config_file(path) == (
        {
            "HOROVOD_FUSION_THRESHOLD": "2097152",
            "HOROVOD_CYCLE_TIME": "0.5",
            "HOROVOD_TIMELINE": "t.json",
            "HOROVOD_TIMELINE_MARK_CYCLES": "1",
            "HOROVOD_STALL_CHECK_DISABLE": "1",
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "5",
            "HOROVOD_LOG_LEVEL": "debug",
            "HOROVOD_LOG_HIDE_TIME": "1",
            "HOROVOD_CONTROLLER": "gloo",
        },
        ["logging.hide_timestamp", "tensors"],
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("timeline: {mark_cycles: [1]}", r"mark-cycles=\[1\] must be true or false"),
        ("timeline: {filename: [a]}", "put it in quotes"),
        ("stall_check: {enabled: 'off'}", "stall_check.enabled=off must be true or false"),
        ("params: {cache_capacity: 1.5}", "cache-capacity=1.5 is not a whole number"),
        ("params: {cycle_time_ms: true}", "cycle-time-ms=True is not a number"),
        ("controller: jsrun", "controller jsrun: choose gloo or mpi"),
        ("- a\n- b", "holds no settings"),
        ("a: [", "cannot read"),
    ],
)
def test_a_wrong_configuration_file_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    """Whatever YAML can say ends in a message."""
    with pytest.raises(UsageError, match=complaint):
        read_config_file(config_file(tmp_path, text))


def test_a_flag_chooses_the_controller_over_the_file(tmp_path: Path) -> None:
    """With --gloo the file's controller does not count."""
    assert read_config_file(config_file(tmp_path, "controller: mpi"), any_controller=True) == ({}, [])


def test_an_empty_configuration_file_sets_nothing(tmp_path: Path) -> None:
    """It is no error either."""
    assert read_config_file(config_file(tmp_path, "")) == ({}, [])
