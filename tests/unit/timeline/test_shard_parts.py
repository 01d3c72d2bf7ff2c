"""A timeline that keeps the newest of it: files come and go, and what is left reads as one run."""

import logging
import os
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tlkit.collector.model.steps import find_steps
from tlkit.timeline import open_trace
from tlkit.timeline.record import recorder, shard_writer
from tlkit.timeline.record.sampled_format import NO_STEP, format_for
from tlkit.timeline.record.shard_format import ShardClock, ShardFormat, ShardHeader
from tlkit.timeline.record.shard_parts import Keep, Parts, parse_keep
from tlkit.timeline.record.shard_writer import ShardWriter
from tlkit.timeline.vocabulary import LANE_TIDS, STEP, LaneKind

COMPUTE, STEPS = LANE_TIDS[LaneKind.COMPUTE], LANE_TIDS[LaneKind.STEPS]
MS = 1_000_000


@pytest.fixture(autouse=True)
def _asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer's own thread wakes at a flush interval only, so that tests may do its work."""
    monkeypatch.setattr(shard_writer, "QUIET_S", 3600.0)


def header(rank: int = 0, size: int = 1) -> ShardHeader:
    """Of a run with its origin at 0."""
    return ShardHeader(
        run_id="r",
        rank=rank,
        size=size,
        local_rank=rank,
        host="h",
        boot_id="b",
        process_id=1,
        device="cpu",
        clock=ShardClock(origin_ns=0, origin_unix_ns=0),
    )


def write(writer: ShardWriter, steps: range) -> None:
    """Steps of ten milliseconds; each is in the file before the next begins."""
    for number in steps:
        start_ns = number * 10 * MS
        writer.span("FORWARD", "forward", COMPUTE, start_ns, start_ns + 4 * MS, {"module": "Net"})
        writer.span(STEP, "step", STEPS, start_ns, start_ns + 9 * MS, {"step": number})
        # What the writer's thread does at a flush.
        writer._flush(final=False)
        assert writer._parts is not None
        if writer._parts.is_full(writer._nbytes):
            writer._begin_part(writer._parts)


def run(path: Path, keep: str, steps: int, rank: int = 0, size: int = 1, *, sums: bool = False) -> None:
    """Record so many steps, with the writer's own thread asleep."""
    form = format_for(NO_STEP if sums else None)
    writer = ShardWriter(path, header(rank, size), 3600.0, form, keep=parse_keep(keep))
    writer.start()
    write(writer, range(steps))
    writer.close()


def test_the_newest_steps_stay_and_all_step_times(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of 95 steps with a limit of 20 the last 15 are in full; how long the others took is known; said once."""
    path = tmp_path / "t.json"
    run(path, "20steps", 95)
    trace = open_trace(path)
    trace.check()

    assert sorted(file.name for file in tmp_path.iterdir()) == ["t.json", "t.part10.json", "t.part9.json"]
    assert trace.steps["step"].tolist() == list(range(80, 95))
    assert len(trace.spans[trace.spans["name"] == "FORWARD"]) == 15
    assert trace.sums["step"].tolist() == list(range(80))
    assert set(trace.sums["end_ns"] - trace.sums["start_ns"]) == {9 * MS}
    both = np.concatenate([trace.sums["start_ns"], trace.steps["start_ns"]])
    assert np.diff(both).tolist() == [10 * MS] * 94
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "keeps the newest 20steps" in caplog.text
    assert trace.meta.ends[0].is_closed
    assert not trace.meta.dropped
    assert find_steps(trace).excluded == 0


def test_bytes_are_bounded(tmp_path: Path) -> None:
    """Files of a rank together never exceed the limit by more than what one flush writes, but for the step times."""
    path = tmp_path / "t.json"
    run(path, "40kb", 1500)
    parts = sum(file.stat().st_size for file in tmp_path.iterdir() if file != path)

    assert parts < 41_000
    assert path.stat().st_size < 2000 + 20 * 1500
    assert len(open_trace(path).steps) + len(open_trace(path).sums) == 1500


@pytest.mark.parametrize("given", ["t.json", "t.rank1.json", "t.part2.json", "t.rank1.part3.json"])
def test_any_part_finds_all_parts_of_all_ranks(tmp_path: Path, given: str) -> None:
    """As any shard does."""
    for rank, name in enumerate(("t.json", "t.rank1.json")):
        run(tmp_path / name, "20steps", 25, rank, 2)
    if not (tmp_path / given).exists():
        pytest.fail(f"{sorted(file.name for file in tmp_path.iterdir())}")
    trace = open_trace(tmp_path / given)

    assert trace.meta.ranks == (0, 1)
    for rank in (0, 1):
        assert trace.steps.loc[trace.steps["rank"] == rank, "step"].tolist() == list(range(10, 25))
        assert trace.sums.loc[trace.sums["rank"] == rank, "step"].tolist() == list(range(10))


def test_sums_alone_keep_their_parts_as_long_as_they_stay(tmp_path: Path) -> None:
    """HOROVOD_TIMELINE_LEVEL=steps with a limit: of what was dropped, nothing is known but how long it took."""
    path = tmp_path / "t.json"
    run(path, "20steps", 45, sums=True)
    trace = open_trace(path)

    assert not trace.meta.knows_order
    assert trace.steps["step"].tolist() == list(range(30, 45))
    assert sorted(trace.sums["step"]) == list(range(45))


def test_another_run_of_the_same_name_is_left_out(tmp_path: Path) -> None:
    """Parts of a longer run that was here before."""
    path = tmp_path / "t.json"
    run(path, "20steps", 95)
    writer = ShardWriter(
        path,
        ShardHeader(**{**cast("dict[str, Any]", _fields(header())), "run_id": "another"}),
        3600.0,
        keep=parse_keep("20steps"),
    )
    writer.start()
    write(writer, range(12))
    writer.close()
    trace = open_trace(path)

    assert trace.steps["step"].tolist() == list(range(12))
    assert any("to another run" in note for note in trace.meta.notes)


def _fields(described: ShardHeader) -> dict[str, object]:
    return {name: getattr(described, name) for name in ShardHeader.__slots__}


def test_a_full_disk_ends_the_timeline_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """When the next part cannot be made, what was written stays."""
    path = tmp_path / "t.json"
    writer = ShardWriter(path, header(), 3600.0, keep=parse_keep("20steps"))
    writer.start()
    (tmp_path / "t.part2.json").mkdir()
    write(writer, range(15))
    writer.close()

    assert "ends here" in caplog.text
    assert len(open_trace(path).steps) == 10


def test_time_may_be_the_limit(tmp_path: Path) -> None:
    """Half of it makes a part."""
    now_s = 0.0
    parts = Parts(tmp_path / "t.json", Keep(60.0, "seconds", "60s"), clock=lambda: now_s)
    now_s = 29.0
    assert not parts.is_full(10**12)
    now_s = 31.0
    assert parts.is_full(0)
    assert parts.next(os.open(os.devnull, os.O_WRONLY)) == tmp_path / "t.part2.json"
    parts.close(ShardFormat(header()))
    assert not parts.is_full(0)


def test_the_recorder_begins_parts_by_itself(tmp_path: Path) -> None:
    """Through the recorder and the writer's own thread."""
    path = tmp_path / "t.json"
    recorder.start_timeline(ShardWriter(path, header(), 0.01, ShardFormat, keep=parse_keep("30kb")))
    number = 0
    while not (tmp_path / "t.part4.json").exists():
        with recorder.span("forward", "FORWARD"):  # type: ignore[arg-type]  # a plain text is its category
            pass
        now_ns = recorder.now_ns()
        recorder.complete(LaneKind.STEPS, "step", STEP, now_ns - 1000, now_ns, {"step": number})
        number += 1
    recorder.stop_timeline()
    trace = open_trace(path)

    assert len(trace.steps) + len(trace.sums) == number
    assert trace.steps["step"].iloc[-1] == number - 1


def test_a_step_at_the_border_of_parts_is_there_once(tmp_path: Path) -> None:
    """What counts a step and its span are written one after the other, and another part may begin between them."""
    path = tmp_path / "t.json"
    writer = ShardWriter(path, header(), 0.001, ShardFormat, keep=parse_keep("4kb"))

    writer.start()
    number = 0
    while not (tmp_path / "t.part6.json").exists():
        writer.queue.call(writer._step_ended, number, 1000 * number, 1000 * number + 500)
        assert writer.flush(10.0)
        parts = len(list(tmp_path.iterdir()))
        until = time.monotonic() + 0.02
        while time.monotonic() < until and parts == len(list(tmp_path.iterdir())):
            time.sleep(0.001)
        writer.queue.span(
            "STEP", "step", LANE_TIDS[LaneKind.STEPS], 1000 * number, 1000 * number + 500, {"step": number}
        )
        number += 1
    writer.close()
    trace = open_trace(path)

    assert sorted([*trace.steps["step"], *trace.sums["step"]]) == list(range(number))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2GB", (2e9, "bytes")),
        ("1.5 h", (5400.0, "seconds")),
        ("500steps", (500.0, "steps")),
        ("7D", (604800.0, "seconds")),
    ],
)
def test_limits(text: str, expected: tuple[float, str]) -> None:
    """As people write them."""
    keep = parse_keep(text)

    assert keep is not None
    assert (keep.amount, keep.unit) == expected


@pytest.mark.parametrize("text", ["", "2", "GB", "-1GB", "2 gigabytes", "0steps", "1e9s"])
def test_nonsense_is_no_limit(text: str) -> None:
    """It is refused, with what it might be."""
    with pytest.raises(ValueError, match="2GB"):
        parse_keep(text)


def test_all_is_no_limit() -> None:
    """Whatever the disk says to it."""
    assert parse_keep("all") is None
