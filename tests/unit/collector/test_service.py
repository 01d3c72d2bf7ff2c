"""The parts of the collector that need no network."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import examples
from tests.traces import make_trace
from tlkit.collector import analyze
from tlkit.collector.service.alerts import Alerts
from tlkit.collector.service.live import Follower
from tlkit.collector.service.metrics import label, to_prometheus
from tlkit.collector.service.store import OffsetError, RefusedError, ShardStore
from tlkit.timeline.errors import TraceNotFoundError

from .test_diagnosis import changed, jittered


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.integers(0, 40), st.binary(max_size=12)), max_size=25))
def test_a_shard_never_has_gaps_or_doubles(pieces: list[tuple[int, bytes]]) -> None:
    """Whatever is sent in whatever order: the shard is what fits at its end, piece after piece."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        store = ShardStore(Path(folder) / "kept")
        expected = b""
        for offset, piece in pieces:
            try:
                assert store.append("r", "t.json", offset, piece) == len(expected) + len(piece)
                assert offset == len(expected)
                expected += piece
            except OffsetError as error:
                assert error.size == len(expected) != offset
        kept = Path(folder) / "kept" / "r" / "t.json"
        assert (kept.read_bytes() if kept.exists() else b"") == expected


def test_the_oldest_runs_go_first(tmp_path: Path) -> None:
    """And one run alone cannot be larger than what is kept."""
    import os

    store = ShardStore(tmp_path, most_nbytes=3000)
    for number in range(4):
        store.append(f"r{number}", "t.json", 0, b"x" * 900)
        os.utime(tmp_path / f"r{number}" / "t.json", (number, number))
    assert store.runs() == ["r3", "r2", "r1"]
    with pytest.raises(RefusedError, match="larger than"):
        store.append("big", "t.json", 0, b"x" * 4000)


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "x" * 200, "a\x00b"])
def test_names_are_names(name: str, tmp_path: Path) -> None:
    """Nothing that a path could make something of."""
    with pytest.raises(RefusedError):
        ShardStore(tmp_path).append(name, "t.json", 0, b"x")


def test_labels_are_escaped() -> None:
    """As the text format wants it."""
    assert label('a"b\\c\nd') == 'a\\"b\\\\c\\nd'
    assert to_prometheus({}) == "\n"


def test_an_alert_is_told_once_until_it_is_over() -> None:
    """It begins to hold, holds on, ends, begins again."""
    told: list[str] = []
    alerts = Alerts(["gain>10%"], on_alert=told.append)
    slow = analyze(make_trace(jittered(changed(2, 30, [1], forward=50))))
    healthy = analyze(make_trace(jittered(changed(2, 30, []))))
    for analysis in (slow, slow, healthy, slow):
        alerts.look("r", analysis)
    assert len(told) == 2


def shard(steps: int) -> str:
    """One of our shards, with so many steps of 10 ms, of which forward takes 8."""
    header = {
        "format": "tlkit.timeline/1", "run_id": "ab" * 8, "rank": 0, "size": 1, "local_rank": 0, "host": "h", "boot_id": "b",
        "process_id": 1, "device": "cpu",
        "clock": {"source": "CLOCK_MONOTONIC", "origin_ns": 0, "origin_unix_ns": 0, "offset_ns": 0, "uncertainty_ns": 0, "method": "self"},
    }  # fmt: skip
    lines = ["[", json.dumps({"name": "tlkit_shard", "ph": "M", "pid": 0, "tid": 0, "ts": 0, "args": header}) + ","]
    for number in range(steps):
        at = number * 10_000
        span = {"ph": "X", "pid": 0}
        lines.append(
            json.dumps(span | {"name": "FORWARD", "cat": "forward", "tid": 1, "ts": at + 1, "dur": 8000}) + ","
        )
        lines.append(
            json.dumps(
                span | {"name": "STEP", "cat": "step", "tid": 0, "ts": at, "dur": 10_000, "args": {"step": number}}
            )
            + ","
        )
    return "\n".join(lines) + "\n"


def test_a_follower_sees_what_grows_and_of_a_long_run_its_end(tmp_path: Path) -> None:
    """Nothing there, a few steps, more, and more than a window."""
    seen: list[tuple[int, int]] = []
    path = tmp_path / "t.json"
    follower = Follower(
        [str(path)], lambda analysis: seen.append((int(analysis.facts.steps.numbers[-1]), analysis.facts.steps.count)),
        window_nbytes=300_000,
    )  # fmt: skip
    with pytest.raises(TraceNotFoundError):
        follower.look()
    path.write_text(shard(50))
    assert follower.look()
    assert not follower.look()
    path.write_text(shard(5000))
    assert follower.look()

    assert seen[0] == (49, 49)
    assert seen[1][0] == 4999
    assert 500 < seen[1][1] < 3000
