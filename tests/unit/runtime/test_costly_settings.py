"""Debugging aids that are on: which are seen, and when the timeline is told."""

import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tlkit.runtime.instrument import costly_settings, fit_steps
from tlkit.runtime.instrument.costly_settings import SettingsWatch, settings_now
from tlkit.runtime.instrument.patching import Patches
from tlkit.timeline.record import recorder


@pytest.fixture(autouse=True)
def without_the_tracer_of_coverage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring the tests is one of the aids that are looked for."""
    monkeypatch.setattr(sys, "gettrace", lambda: None)


@contextmanager
def traced() -> Iterator[None]:
    """A profile function, as a profiler or debugger sets one."""
    before = sys.getprofile()
    sys.setprofile(lambda *_: None)
    try:
        yield
    finally:
        sys.setprofile(before)


@contextmanager
def tracing_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


class _Writer:
    """A timeline that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[list[str]] = []

    def settings(self, on: dict[str, float], details: dict[str, str]) -> None:
        self.told.append(list(on))


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> _Writer:
    made = _Writer()
    monkeypatch.setattr(recorder, "timeline", lambda: made)
    return made


def test_what_is_on_is_seen_while_it_is_on() -> None:
    """As the libraries and Python themselves tell it."""
    before = settings_now()
    assert "autograd-anomaly" not in before
    with pytest.warns(UserWarning, match="Anomaly Detection"), torch.autograd.detect_anomaly():
        assert settings_now() - before == {"autograd-anomaly"}
    with tracing_memory():
        assert settings_now() - before == {"tracemalloc"}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True):
        assert settings_now() - before == {"torch-profiler"}
    with traced():
        assert "python-tracing" in settings_now()
    assert settings_now() == before


def test_variables_count_where_something_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a device, or torch.distributed, they slow nothing."""
    before = settings_now()
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "detail")
    assert settings_now() == before
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert settings_now() - before == {"launch-blocking"}
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert settings_now() - before == {"launch-blocking", "distributed-debug"}
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "INFO")
    assert settings_now() - before == {"launch-blocking"}


def test_functions_of_tensorflow_that_run_eagerly_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the script has loaded it; also where it cannot say so."""
    before = settings_now()
    config = type("config", (), {"functions_run_eagerly": staticmethod(lambda: True)})
    for module in (type("tensorflow", (), {"config": config}), type("tensorflow", (), {})):
        monkeypatch.setitem(sys.modules, "tensorflow", module)
        expected = {"eager-functions"} if hasattr(module, "config") else set()
        assert settings_now() - before == expected


def test_threads_are_told_once_there_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """And that there is one alone afterwards."""
    told: list[tuple[str, float]] = []
    threads = 1
    monkeypatch.setattr(recorder, "counter", lambda name, value: told.append((name, value)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    watch = SettingsWatch()
    for number, threads in enumerate((1, 8, 1, 1)):  # noqa: B007  the function above reads it
        watch.step_ended(number + 1)

    assert told == [
        ("operator threads", 8),
        ("cores of the process", 2),
        ("operator threads", 1),
        ("cores of the process", 2),
    ]


def test_cores_of_a_bound_rank_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though one thread computes."""
    told: list[tuple[str, float]] = []
    monkeypatch.setattr(recorder, "counter", lambda name, value: told.append((name, value)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {2, 5, 3})
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    SettingsWatch().step_ended(1)

    assert told == [
        ("operator threads", 1),
        ("cores of the process", 3),
        ("first core of the process", 2),
        ("last core of the process", 5),
    ]


def test_the_timeline_is_told_in_fewer_and_fewer_steps(monkeypatch: pytest.MonkeyPatch, writer: _Writer) -> None:
    """What was on in backward alone counts; that nothing is on any more is told once, and nothing is if nothing ever was."""
    on = False
    looks = 0

    def now() -> set[str]:
        nonlocal looks
        looks += 1
        return {"tracemalloc"} if on else set()

    monkeypatch.setattr(costly_settings, "settings_now", now)
    watch = SettingsWatch()
    for number in range(200):
        on = number < 50
        watch.look()
        on = False
        watch.step_ended(number + 1)
    due = [0, 1, 2, 4, 8, 16, 32, 64, 128]
    assert looks == 2 * len(due)
    assert writer.told == [["tracemalloc"]] * 7 + [[]]

    watch.forget()
    writer.told.clear()
    for number in range(20):
        watch.step_ended(number + 1)
    assert writer.told == []


@pytest.mark.parametrize(
    ("is_eager", "compiles", "expected"),
    [(True, True, [["eager-functions"]]), (False, True, []), (True, False, [])],
)
def test_a_model_of_keras_that_runs_eagerly_is_told(
    *, is_eager: bool, compiles: bool, expected: list[list[str]], monkeypatch: pytest.MonkeyPatch, writer: _Writer
) -> None:
    """On the backends that compile the function which trains on a batch."""
    watch = SettingsWatch()
    monkeypatch.setattr(fit_steps, "watch", watch)

    class Trainer:
        run_eagerly = is_eager
        train_function: Any = None

        def make_train_function(self) -> None:
            self.train_function = lambda: None

    patches = Patches()
    fit_steps.wrap_train_function(patches, Trainer, waits=True, compiles=compiles)
    trainer = Trainer()
    trainer.make_train_function()
    trainer.train_function()
    watch.step_ended(1)
    patches.restore()

    assert writer.told == expected
