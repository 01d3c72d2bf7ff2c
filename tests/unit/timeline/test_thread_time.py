"""What a step's thread got of the processor outside the step's parts."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tlkit.timeline.record import recorder
from tlkit.timeline.record.shard_format import ShardClock, ShardHeader
from tlkit.timeline.record.shard_writer import ShardWriter
from tlkit.timeline.record.thread_time import StepTime, ThreadTime
from tlkit.timeline.vocabulary import SYNCHRONIZE, Category


class Readings(ThreadTime):
    """Readings that a test has made up: ns run, and ns waited for a core."""

    def __init__(self, *readings: tuple[int, int]) -> None:
        super().__init__()
        self._readings = list(readings)

    def read(self) -> tuple[int, int]:
        return self._readings.pop(0)


@pytest.fixture(autouse=True)
def _recording_ends() -> Iterator[None]:
    yield
    recorder.stop_timeline()


def test_what_is_in_no_part_is_other() -> None:
    """The step's total without its parts; parts of the step before do not count."""
    step = StepTime(Readings((100, 10), (1100, 60), (2000, 70), (2600, 75)))
    step.add(5000, 5000)
    step.begin()
    step.add(600, 20)
    step.add(100, 5)
    first = step.end()
    step.begin()
    second = step.end()

    assert first is not None
    assert second is not None
    assert first[:2] == (300, 25)
    assert second[:2] == (600, 5)
    assert first[2] >= 0


def test_a_part_that_reaches_over_the_end_makes_nothing_negative() -> None:
    """It is counted whole where it ends; a step whose beginning was not seen has no counters."""
    step = StepTime(Readings((0, 0), (100, 5)))
    assert step.end() is None
    step.begin()
    step.add(400, 50)
    found = step.end()

    assert found is not None
    assert found[:2] == (0, 0)


def test_where_waiting_is_unknown_it_is_not_counted() -> None:
    """As outside Linux."""
    step = StepTime(Readings((0, -1), (100, -1)))
    step.begin()
    found = step.end()

    assert found is not None
    assert found[:2] == (100, None)


def shard(path: Path) -> ShardWriter:
    clock = ShardClock(origin_ns=0, origin_unix_ns=0)
    header = ShardHeader(
        run_id="r", rank=0, size=1, local_rank=0, host="h", boot_id="b", process_id=1, device="cpu", clock=clock
    )  # fmt: skip
    return ShardWriter(path, header, flush_interval_s=60)


def counters(path: Path) -> dict[str, list[float]]:
    """What was counted, in order."""
    found: dict[str, list[float]] = {}
    for event in json.loads(path.read_text()):
        if event["ph"] == "C":
            found.setdefault(event["name"], []).append(event["args"]["value"])
    return found


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_the_loop_s_own_work_shows_and_that_of_waits_does_not(tmp_path: Path) -> None:
    """Phases have their counters, a wait none, and the step the rest, at its end."""
    recorder.start_timeline(shard(tmp_path / "t.json"))
    recorder.begin_step()
    with recorder.span(Category.FORWARD, "FORWARD"):
        spin(0.02)
    with recorder.span(Category.OTHER, SYNCHRONIZE):
        spin(0.04)
    spin(0.03)
    end_ns = recorder.now_ns()
    recorder.end_step(end_ns)
    recorder.stop_timeline()
    events = [event for event in json.loads((tmp_path / "t.json").read_text()) if event["ph"] == "C"]
    found = {event["name"]: event["args"]["value"] for event in events}
    at = {event["name"]: event["ts"] for event in events}

    assert 20e6 <= found["forward cpu_ns"] < 30e6
    assert 30e6 <= found["other cpu_ns"] < 40e6
    assert found["step process_cpu_ns"] >= 90e6
    assert at["other cpu_ns"] == pytest.approx(end_ns / 1e3)


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="the kernel does not count it")
def test_a_thread_that_shares_its_core_has_waited_for_it(tmp_path: Path) -> None:
    """As the kernel counts it: nothing is kept from an earlier look by a thread that has been off the processor since."""

    def waited_ns() -> int:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1])

    allowed = os.sched_getaffinity(0)
    core = min(allowed)
    recorder.start_timeline(shard(tmp_path / "t.json"))
    between: list[int] = []
    program = f"import os; os.sched_setaffinity(0, {{{core}}}); print('ready', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as busy:
        try:
            assert busy.stdout is not None
            assert busy.stdout.readline() == b"ready\n"
            os.sched_setaffinity(0, {core})
            for _ in range(4):
                before = waited_ns()
                with recorder.span(Category.FORWARD, "FORWARD"):
                    spin(0.05)
                between.append(waited_ns() - before)
        finally:
            os.sched_setaffinity(0, allowed)
            busy.kill()
    recorder.stop_timeline()
    starved = counters(tmp_path / "t.json")["forward starved_ns"]

    assert len(starved) == 4
    assert all(found <= limit for found, limit in zip(starved, between, strict=True))
    # Of a core that two share each has waited for about as long as it ran; some of it may lie just outside the span.
    assert sum(starved) >= 0.5 * sum(between) > 20e6
