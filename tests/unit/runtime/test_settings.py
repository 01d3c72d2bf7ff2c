"""What the environment says: settings, ranks, log."""

import io
import logging
import re
from collections.abc import Callable, Iterator

import pytest

from tlkit.runtime.core import logs
from tlkit.runtime.core.config import Config
from tlkit.runtime.core.topology import Topology, read_launched
from tlkit.timeline.errors import UsageError
from tlkit.timeline.record.sampled_format import NO_STEP, Sampling


def test_settings_have_horovods_defaults() -> None:
    """Nothing set."""
    assert Config.from_environment({}) == Config()
    assert Config().fusion_threshold_nbytes == 128 * 1024 * 1024
    assert Config().timeline_path is None


def test_settings_are_read_and_nonsense_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A value without sense never becomes zero in silence."""
    config = Config.from_environment(
        {
            "HOROVOD_TIMELINE": "DYNAMIC",
            "HOROVOD_CYCLE_TIME": "2.5",
            "HOROVOD_FUSION_THRESHOLD": "(None,)",
            "HOROVOD_CACHE_CAPACITY": "-3",
            "HOROVOD_STALL_CHECK_DISABLE": "yes",
            "HOROVOD_TIMELINE_MARK_CYCLES": "perhaps",
        }
    )

    assert config.cycle_time_s == pytest.approx(0.0025)
    assert config.fusion_threshold_nbytes == Config().fusion_threshold_nbytes
    assert config.cache_capacity == 8192
    assert not config.stall_check
    assert not config.mark_cycles
    assert (config.timeline, config.timeline_path) == ("DYNAMIC", None)
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == [
        "HOROVOD_TIMELINE_MARK_CYCLES",
        "HOROVOD_FUSION_THRESHOLD",
        "HOROVOD_CACHE_CAPACITY",
    ]


@pytest.mark.parametrize(
    ("environment", "expected", "warnings"),
    [
        ({}, None, 0),
        ({"HOROVOD_TIMELINE_LEVEL": "all"}, None, 0),
        ({"HOROVOD_TIMELINE_LEVEL": "steps"}, NO_STEP, 0),
        ({"HOROVOD_TIMELINE_LEVEL": "steps", "HOROVOD_TIMELINE_EVERY": "100:5"}, NO_STEP, 1),
        ({"HOROVOD_TIMELINE_EVERY": "100:5"}, Sampling(100, 5), 0),
        ({"HOROVOD_TIMELINE_EVERY": "5:100"}, None, 1),
        ({"HOROVOD_TIMELINE_EVERY": "100"}, None, 1),
        ({"HOROVOD_TIMELINE_EVERY": "100:0"}, None, 1),
        ({"HOROVOD_TIMELINE_LEVEL": "some"}, None, 1),
    ],
)
def test_which_steps_are_recorded_in_full(
    environment: dict[str, str], expected: Sampling | None, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    """All, none, or some of many; what makes no sense records all, and says so."""
    assert Config.from_environment(environment).sampling == expected
    assert len(caplog.records) == warnings


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ("none", 0, 1, None)),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1", "RANK": "9"}, ("tl-run", 1, 4, 1)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, ("mpirun", 2, 3, None)),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, ("torchrun", 0, 2, 0)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "1"}, ("srun", 1, 2, 1)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, ("none", 0, 1, None)),
        ({"RANK": "x", "WORLD_SIZE": "2"}, ("none", 0, 1, None)),
    ],
)
def test_every_launcher_is_recognised(environment: dict[str, str], expected: tuple[str, int, int, int | None]) -> None:
    """By its own variables; an interactive Slurm shell is nobody's rank."""
    launched = read_launched(environment)

    assert (launched.launcher, launched.rank, launched.size, launched.local_rank) == expected


def test_a_rank_beyond_the_size_is_refused() -> None:
    """With both variables named."""
    with pytest.raises(UsageError, match="HOROVOD_RANK=4 does not fit HOROVOD_SIZE=2"):
        read_launched({"HOROVOD_RANK": "4", "HOROVOD_SIZE": "2"})


def test_local_and_cross_ranks_follow_from_the_hosts() -> None:
    """Two hosts with two ranks and one with one."""
    hosts = ("a", "a", "b", "b", "c")
    launched = [read_launched({"RANK": str(rank), "WORLD_SIZE": "5"}) for rank in range(5)]
    built = [Topology.build(each, hosts, (None,) * 5) for each in launched]

    assert [each.local_rank for each in built] == [0, 1, 0, 1, 0]
    assert [each.local_size for each in built] == [2, 2, 2, 2, 1]
    assert [(each.cross_rank, each.cross_size) for each in built] == [(0, 3), (0, 2), (1, 3), (1, 2), (2, 3)]
    assert not built[0].is_homogeneous


@pytest.fixture
def log_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, dict[str, str]], io.StringIO]]:
    """Sets the log of `tlkit` up as in a process where nobody else has, and returns where it goes."""
    log = logging.getLogger("tlkit")

    def set_up(rank: int, environment: dict[str, str]) -> io.StringIO:
        stream = io.StringIO()
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        monkeypatch.setattr(log, "handlers", [])
        logs.set_up(rank, environment)
        return stream

    yield set_up
    log.setLevel(logging.NOTSET)
    log.propagate = True


def test_the_log_looks_like_horovods(log_of: Callable[[int, dict[str, str]], io.StringIO]) -> None:
    """Level, place and rank; the level is chosen by HOROVOD_LOG_LEVEL."""
    written = log_of(3, {"HOROVOD_LOG_LEVEL": "INFO"})
    logging.getLogger("tlkit.runtime").info("hello %s", "there")
    logging.getLogger("tlkit.runtime").debug("unheard")

    form = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.[ \d]{6}: I test_settings\.py:\d+\] \[3\]: hello there\n"
    assert re.fullmatch(form, written.getvalue())


def test_the_time_can_be_left_out(log_of: Callable[[int, dict[str, str]], io.StringIO]) -> None:
    """HOROVOD_LOG_HIDE_TIME=1."""
    written = log_of(0, {"HOROVOD_LOG_HIDE_TIME": "1"})
    logging.getLogger("tlkit.runtime").warning("late")

    assert re.fullmatch(r"\[W test_settings\.py:\d+\] \[0\]: late\n", written.getvalue())
