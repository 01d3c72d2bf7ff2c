"""The flight recorder of one rank: what is set aside, what is left behind, and when steps are slow."""

import json
import logging
from pathlib import Path

import pytest

from tlkit.timeline import open_trace
from tlkit.timeline.record.flight import WHY, FlightRecorder, SlowSteps, path_in, why_of
from tlkit.timeline.record.shard_format import ShardClock, ShardHeader
from tlkit.timeline.record.shard_parts import parse_keep
from tlkit.timeline.record.shard_writer import ShardWriter
from tlkit.timeline.vocabulary import LANE_TIDS, STEP, LaneKind

MS = 1_000_000


def start(folder: Path, keep: str = "64MB") -> ShardWriter:
    """The recording of rank 0 of one."""
    clock = ShardClock(origin_ns=0, origin_unix_ns=0)
    header = ShardHeader(
        run_id="r", rank=0, size=1, local_rank=0, host="h", boot_id="b", process_id=1, device="cpu", clock=clock
    )
    path = path_in(folder)
    path.parent.mkdir(parents=True)
    writer = ShardWriter(path, header, keep=parse_keep(keep))
    writer.start()
    return writer


def steps(writer: ShardWriter, numbers: range) -> None:
    """Ten milliseconds each."""
    for number in numbers:
        begin = number * 10 * MS
        writer.span("FORWARD", "forward", LANE_TIDS[LaneKind.COMPUTE], begin, begin + 5 * MS, None)
        writer.span(STEP, "step", LANE_TIDS[LaneKind.STEPS], begin, begin + 10 * MS, {"step": number})


def test_what_is_set_aside_is_all_that_was_recorded_so_far(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """To the last step before it, and it stays so while the recording goes on; the log says why and how to look."""
    writer = start(tmp_path)
    recorder = FlightRecorder(tmp_path, writer, 0)
    steps(writer, range(30))
    target = recorder.set_aside("001-stall", "rank 1 did not submit x")
    steps(writer, range(30, 40))
    writer.close()
    assert target is not None
    trace = open_trace(target)

    assert trace.steps["step"].tolist() == list(range(30))
    assert "set aside by the flight recorder: rank 1 did not submit x" in trace.meta.notes
    assert f"tl-analyze {target}" in caplog.text
    assert json.loads((target / WHY).read_text())["unix_ns"] > 0


def test_a_long_run_is_set_aside_with_its_newest_parts(tmp_path: Path) -> None:
    """The limit holds, and all that is within it is copied."""
    writer = start(tmp_path, "30kb")
    recorder = FlightRecorder(tmp_path, writer, 0)
    for first in range(0, 2000, 100):
        steps(writer, range(first, first + 100))
        assert writer.flush(10.0)
    target = recorder.set_aside("slow", "why")
    writer.close()
    assert target is not None
    trace = open_trace(target)

    assert len(trace.steps) < 600
    assert trace.steps["step"].iloc[-1] == 1999
    assert len(trace.steps) + len(trace.sums) == 2000


def test_a_run_that_ends_well_leaves_nothing_behind(tmp_path: Path) -> None:
    """But what was set aside."""
    writer = start(tmp_path, "30kb")
    recorder = FlightRecorder(tmp_path, writer, 0)
    steps(writer, range(10))
    recorder.set_aside("001-signal", "SIGUSR2")
    writer.close()
    recorder.finish("")

    assert [child.name for child in tmp_path.iterdir()] == ["001-signal"]


def test_a_run_that_ends_badly_leaves_its_recording(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the reason."""
    writer = start(tmp_path)
    recorder = FlightRecorder(tmp_path, writer, 0)
    steps(writer, range(10))
    writer.close()
    recorder.finish("rank 1 is gone")
    trace = open_trace(path_in(tmp_path).parent)

    assert len(trace.steps) == 10
    assert "set aside by the flight recorder: the job ended: rank 1 is gone" in trace.meta.notes
    assert "tl-analyze" in caplog.text


def test_one_name_is_set_aside_once_and_no_name_leaves_the_folder(tmp_path: Path) -> None:
    """Names come from other ranks."""
    writer = start(tmp_path / "here")
    recorder = FlightRecorder(tmp_path / "here", writer, 0)
    steps(writer, range(5))
    first, again = recorder.set_aside("../../x", "why"), recorder.set_aside("../../x", "why")
    writer.close()

    assert first == tmp_path / "here" / "_.._x"
    assert again is None


def test_a_disk_that_takes_nothing_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Training goes on."""
    writer = start(tmp_path)
    recorder = FlightRecorder(tmp_path, writer, 0)
    (tmp_path / "taken").write_text("")

    assert recorder.set_aside("taken", "why") is None
    writer.close()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_slow_steps_are_noticed_once_a_stretch() -> None:
    """Twenty steps a fifth slower than the run's own; not the first ones, and not each twenty again."""
    watch = SlowSteps()

    def told(count: int, duration_ms: float) -> list[str]:
        return [said for said in (watch.add(round(duration_ms * MS)) for _ in range(count)) if said]

    assert told(20, 300) == []
    assert told(200, 100) == []
    assert told(100, 115) == []
    assert told(100, 125) == ["the last 20 steps took 125.0 ms each, 25% more than usual"]
    assert told(100, 100) == []
    assert len(told(40, 300)) == 1


def test_short_steps_are_taken_together() -> None:
    """Twenty of a millisecond are slow whenever something else has the core for a moment."""
    watch = SlowSteps()
    durations = ([1.0] * 500 + [100.0]) * 40

    assert not any(watch.add(round(duration_ms * MS)) for duration_ms in durations)


def test_nobody_says_why(tmp_path: Path) -> None:
    """No file, or one that makes no sense."""
    assert why_of(tmp_path) == ""
    for text in ("", "[]", '{"why": 3}', "[" * 100_000):
        (tmp_path / WHY).write_text(text)
        assert why_of(tmp_path) == ""
