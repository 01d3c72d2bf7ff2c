"""Dumps of torch's Flight Recorder: which rank hangs, in which collective; and pickles that mean harm."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tlkit.collector import analyze
from tlkit.collector.commands.analyze import main
from tlkit.timeline import TraceError, open_trace
from tlkit.timeline.formats.plain_pickle import NotPlainError, read_plain_pickle

REPOSITORY = Path(__file__).resolve().parents[3]
SAMPLE = REPOSITORY / "samples" / "formats" / "flight-recorder"
GOLDEN = REPOSITORY / "tests" / "golden" / "formats" / "flight-recorder.txt"


def entry(seq: int, operation: str = "nccl:all_reduce", **changes: Any) -> dict[str, Any]:
    """One entry of the JSON form, an operation that has ended."""
    at = 1_700_000_000_000_000_000 + seq * 1_000_000
    return {
        "collective_seq_id": seq, "input_dtypes": ["Float"], "input_sizes": [[4, 8]], "is_p2p": False, "op_id": seq,
        "output_dtypes": ["Float"], "output_sizes": [[4, 8]], "p2p_seq_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"],
        "profiling_name": operation, "record_id": seq, "retired": True, "state": "completed", "time_created_ns": at,
        "time_discovered_completed_ns": at + 600_000, "time_discovered_started_ns": at + 100_000, "timeout_ms": 600000,
    } | changes  # fmt: skip


STUCK: dict[str, Any] = {"retired": False, "state": "started", "time_discovered_completed_ns": 0}


def write_dump(folder: Path, rank: int, entries: list[dict[str, Any]], **more: Any) -> None:
    (folder / f"fr_trace_rank_{rank}.json").write_text(
        json.dumps({"comm_lib_version": "2.27", "entries": entries, "pg_config": {}, "version": "2.10", **more})
    )


def test_the_sample_reads_as_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    """Three dumps of a real job, as `tl-analyze` shows them."""
    assert main([str(SAMPLE)]) == 0
    assert capsys.readouterr().out == GOLDEN.read_text(encoding="utf-8")


def test_a_rank_that_left_out_a_collective_is_named(tmp_path: Path) -> None:
    """With its number, its group and the ranks that wait."""
    for rank in range(4):
        last = [] if rank == 2 else [entry(3, "nccl:_all_gather_base", **STUCK)]
        write_dump(tmp_path, rank, [entry(1), entry(2), *last])
    analysis = analyze(tmp_path)
    assert (analysis.verdict.cause, analysis.verdict.ranks) == ("hung", (2,))
    assert "allgather #3 of group 0 (default_pg), which rank 2 never asked for" in analysis.verdict.sentence
    collectives = analysis.trace.collectives
    assert collectives[["kind", "nbytes", "dtype", "dur_ns"]].drop_duplicates().to_numpy().tolist() == [
        ["allreduce", 128, "float32", 500_000]
    ]
    assert len(collectives) == 8


def test_a_rank_outside_a_group_is_not_awaited(tmp_path: Path) -> None:
    """Of a group of two, only the other one can be missing; the configuration says who is in it."""
    in_group: dict[str, Any] = {"process_group": ["7", "tensor_parallel"], "pg_id": 7}
    config: dict[str, Any] = {"pg_config": {"7": {"desc": "tensor_parallel", "name": "7", "ranks": "[0, 1]"}}}
    for rank in range(3):
        last = [entry(1, "nccl:broadcast", **in_group, **STUCK)] if rank == 0 else []
        write_dump(tmp_path, rank, [entry(1), *last], **config)
    assert analyze(tmp_path).verdict.ranks == (1,)


def test_what_a_rank_has_forgotten_it_has_asked_for(tmp_path: Path) -> None:
    """The recorder keeps the last operations only."""
    write_dump(tmp_path, 0, [entry(number) for number in range(1, 9)])
    write_dump(tmp_path, 1, [entry(number) for number in range(6, 9)])
    assert analyze(tmp_path).verdict.cause == "nothing-hangs"


def test_a_collective_that_all_have_asked_for_may_hang_itself(tmp_path: Path) -> None:
    """Nobody is blamed then."""
    for rank in range(2):
        write_dump(tmp_path, rank, [entry(1), entry(2, **STUCK)])
    verdict = analyze(tmp_path).verdict
    assert (verdict.cause, verdict.ranks) == ("hung", ())
    assert "which all have asked for, and which does not come to its end" in verdict.sentence


def test_of_ranks_without_a_dump_nothing_is_said(tmp_path: Path) -> None:
    """They may have asked for it, or not."""
    config: dict[str, Any] = {"pg_config": {"0": {"desc": "default_pg", "name": "0", "ranks": "[0, 1, 2]"}}}
    for rank in range(2):
        write_dump(tmp_path, rank, [entry(1), entry(2, **STUCK)], **config)
    analysis = analyze(tmp_path)
    assert (analysis.verdict.cause, analysis.verdict.ranks) == ("hung", ())
    assert "which a rank without a file here has not asked for" in analysis.verdict.sentence
    assert any("1 of 3 ranks have no dump here" in note for note in analysis.trace.meta.notes)


def test_a_message_that_does_not_arrive_is_noted(tmp_path: Path) -> None:
    """Which receipt it belongs to, the dump does not tell."""
    message = entry(1, "nccl:send 0->1", is_p2p=True, p2p_seq_id=3, **STUCK)
    for rank in range(2):
        write_dump(tmp_path, rank, [entry(1), *([message] if rank == 0 else [])])
    assert "rank 0 waits in a send (#3)" in open_trace(tmp_path).meta.notes


def test_different_collectives_under_one_number_are_told(tmp_path: Path) -> None:
    """With the lines that called, where the dump has them."""
    frames: dict[str, Any] = {
        "frames": [
            {"name": "f", "filename": "/x/site-packages/torch/d.py", "line": 1},
            {"name": "f", "filename": "/job/a.py", "line": 7},
        ]
    }
    write_dump(tmp_path, 0, [entry(1), entry(2, **STUCK)])
    write_dump(tmp_path, 1, [entry(1), entry(2, "nccl:all_to_all", **STUCK, **frames)])
    notes = open_trace(tmp_path).meta.notes
    assert any("allreduce of [4, 8] by rank 0; alltoall of [4, 8] at a.py:7 by rank 1" in note for note in notes)


def test_of_two_dumps_of_a_rank_the_one_with_lines_is_read(tmp_path: Path) -> None:
    """The pickle has them, the JSON does not."""
    for rank in range(3):
        shutil.copy(SAMPLE / f"nccl_trace_rank_{rank}", tmp_path)
    write_dump(tmp_path, 0, [entry(1)])
    trace = open_trace(tmp_path)
    assert trace.meta.ranks == (0, 1, 2)
    assert any("same rank: fr_trace_rank_0.json" in note for note in trace.meta.notes)


def test_an_empty_dump_says_how_to_fill_it(tmp_path: Path) -> None:
    """The buffer has no room by default."""
    write_dump(tmp_path, 0, [])
    with pytest.raises(TraceError, match="TORCH_FR_BUFFER_SIZE"):
        open_trace(tmp_path)


class Harm:
    """What a pickle can do when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    """Nothing of it is run."""
    harmed = tmp_path / "harmed"
    dump = {"entries": [Harm(harmed)], "pg_config": {}, "version": "2.10"}
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        (tmp_path / "nccl_trace_rank_0").write_bytes(b"\x80\x02" * (protocol < 2) + pickle.dumps(dump, protocol))
        with pytest.raises(TraceError, match="may run any code: it is not read"):
            open_trace(tmp_path / "nccl_trace_rank_0")
    assert not harmed.exists()


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_pickles_are_read_as_python_reads_them(protocol: int) -> None:
    """All that a dump may hold, shared parts included."""
    shared = [1, -5, 2**70, "ä", None, True, 2.5]
    value = {"a": shared, "b": [shared, (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ()], 3: {"c": "x" * 70_000}}
    assert read_plain_pickle(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02]r\xff\xff\xff\xff.",  # notes a list under number 2 ** 32 - 1
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",  # a text of 2 ** 63 - 1 bytes
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",  # a bytearray of as many
        b"\x80\x02(((((((((.",
        b"\x80\x02}]K\x01s.",  # a key that is a list
        b"\x80\x02",
        b"\x80\x02h\x05.",  # what was never noted
    ],
)
def test_lengths_and_numbers_of_a_pickle_are_not_believed(data: bytes) -> None:
    """No memory for what is not there; an error, or a value as small as the data."""
    try:
        value = read_plain_pickle(data)
    except NotPlainError:
        return
    assert not isinstance(value, (list, dict)) or not value


def test_parts_that_hold_each_other_many_times_take_no_time(tmp_path: Path) -> None:
    """Thirty levels, each twice the one below: written out they would be a billion."""
    level: Any = "x"
    for _ in range(30):
        level = [level, level]
    odd = entry(1, input_sizes=level, frames=level, process_group=level, profiling_name=level, time_created_ns=level)
    dump = {"entries": [odd, entry(2)] * 3, "pg_config": {"0": {"ranks": level}}, "pg_status": level, "version": level}
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(dump, 2))
    assert len(open_trace(tmp_path).spans) == 3
