"""What `benchmarks/repeated.py` writes are traces like those it repeats: valid, with growing numbers, and as long as asked for."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tlkit.timeline import open_trace
from tlkit.timeline.formats import tlkit
from tlkit.timeline.read.source import Source

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import repeated


def test_a_repeated_kineto_trace_has_growing_times_and_its_own_numbers(tmp_path: Path) -> None:
    """JSON; every kernel but NCCL's has the call that launched it, steps are numbered one after the other."""
    count = repeated.write_kineto(tmp_path / "t.json", 3_000_000, body_nbytes=500_000)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    trace = open_trace(tmp_path / "t.json")
    trace.check()

    assert len(events) == len(trace.spans) == count
    assert 2_500_000 < (tmp_path / "t.json").stat().st_size < 3_500_000
    assert (np.diff(trace.steps["step"]) == 1).all()
    assert (np.diff(trace.steps["start_ns"]) > 0).all()
    assert len(set(trace.launches["correlation"])) == len(trace.launches)
    assert (trace.launches["launched_ns"] < 0).sum() == len(trace.collectives)
    assert (trace.collectives["start_ns"].diff().dropna() > 0).all()


def test_shards_are_of_one_run(tmp_path: Path) -> None:
    """Twelve ranks (of one digit and of two) on two hosts, each with its steps, ids and times; rank 0 tells who came when."""
    count = sum(repeated.write_shard(tmp_path, 12, 25_000, rank) for rank in range(12))
    trace = open_trace(tmp_path / "t.json")
    trace.check()

    assert trace.meta.events == count
    assert count >= 12 * 25_000
    assert trace.meta.clock.method == "runtime"
    assert trace.meta.dropped == {}
    assert set(trace.meta.hosts.values()) == {"host-0", "host-1"}
    for rank, steps in trace.steps.groupby("rank"):
        assert (np.diff(steps["step"]) == 1).all(), rank
        assert (steps["start_ns"].to_numpy()[1:] >= steps["end_ns"].to_numpy()[:-1] - 1).all(), rank
    assert len({tuple(steps["start_ns"]) for _, steps in trace.steps.groupby("rank")}) > 6
    assert len(trace.arrivals) == 12 * len(trace.collectives[trace.collectives["rank"] == 0])


def test_numbers_that_need_more_digits_are_refused() -> None:
    """They would stand where something else does."""
    template = repeated.Template(b'"ts":999.5', {"us": rb'"ts":([0-9]+)'})
    with pytest.raises(ValueError, match="`us` need more digits"):
        template.moved({"us": 1})


def test_a_shard_that_was_read_holds_its_tables_only(tmp_path: Path) -> None:
    """Not the columns of its events, of which a thousand shards would take twelve gigabytes; and it can be joined again."""
    for rank in range(2):
        repeated.write_shard(tmp_path, 2, 12_000, rank)
    paths = [tmp_path / "t.json", tmp_path / "t.rank1.json"]
    shards = tlkit.scan_shards([Source(path) for path in paths], lambda _done, _total: None)
    first, second = tlkit.join(list(shards)), tlkit.join(list(shards))

    for shard in shards:
        held = [value for value in vars(shard).values() if isinstance(value, np.ndarray)]
        assert sum(array.nbytes for array in held) < shard.count
        assert not any(hasattr(value, "args_start") for value in vars(shard).values())
    assert first.spans.equals(second.spans)
    assert first.meta == second.meta
    assert [first.raw_args[row] for row in range(50)] == [second.raw_args[row] for row in range(50)]
