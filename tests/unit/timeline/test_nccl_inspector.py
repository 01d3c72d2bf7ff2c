"""Logs of NCCL's Inspector: collectives, and what a killed process leaves."""

import json
from pathlib import Path
from typing import Any

import pytest

from tlkit.collector.commands.analyze import main
from tlkit.timeline import TraceError, open_trace

REPOSITORY = Path(__file__).resolve().parents[3]
SAMPLE = REPOSITORY / "samples" / "formats" / "nccl-inspector"
GOLDEN = REPOSITORY / "tests" / "golden" / "formats" / "nccl-inspector.txt"


def line(
    rank: int, seq: int, *, communicator: str = "0xa", size: int = 2, pid: int = 7, busbw: Any = 3.5, **more: Any
) -> str:
    """A collective of 100 us that was written at 1 ms times its number."""
    return json.dumps(
        {
            "header": {"id": communicator, "rank": rank, "n_ranks": size, "nnodes": 1},
            "metadata": {"inspector_output_format_version": "v4.0", "dump_timestamp_us": 10**9 + seq * 1000, "hostname": "h", "pid": pid},
            "coll_perf": {
                "coll": "AllReduce", "coll_sn": seq, "coll_msg_size_bytes": 4096, "coll_exec_time_us": 100, "coll_busbw_gbs": busbw, **more,
            },
        }
    )  # fmt: skip


def test_the_sample_reads_as_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    """Two processes, as `tl-analyze` shows them."""
    assert main([str(SAMPLE)]) == 0
    assert capsys.readouterr().out == GOLDEN.read_text(encoding="utf-8")


def test_without_their_times_collectives_end_when_they_were_written(tmp_path: Path) -> None:
    """With it, they begin where the log says."""
    times: dict[str, Any] = {"event_trace_ts": {"coll_start_ts": 10**9 + 2500}}
    (tmp_path / "a.log").write_text(line(0, 1) + "\n" + line(0, 3, **times) + "\n")
    trace = open_trace(tmp_path / "a.log")
    assert trace.collectives[["seq", "kind", "nbytes", "start_ns", "dur_ns"]].to_numpy().tolist() == [
        [1, "allreduce", 4096, 0, 100_000],
        [3, "allreduce", 4096, 1_600_000, 100_000],
    ]
    assert trace.counters["value"].tolist() == [3.5, 3.5]
    assert any("NCCL_INSPECTOR_DUMP_VERBOSE" in note for note in trace.meta.notes)


def test_ranks_are_those_of_the_largest_communicator(tmp_path: Path) -> None:
    """A rank of a group of two is another one in the job."""
    for rank in range(4):
        lines = [line(rank, 1, size=4, pid=rank), line(rank % 2, 1, communicator="0xb", size=2, pid=rank)]
        (tmp_path / f"h-pid{rank}.log").write_text("\n".join(lines) + "\n")
    trace = open_trace(tmp_path)
    assert trace.meta.ranks == (0, 1, 2, 3)
    assert trace.collectives.groupby("rank")["process_set"].nunique().tolist() == [2, 2, 2, 2]


def test_a_cut_line_and_a_broken_one_are_counted(tmp_path: Path) -> None:
    """The rest is read; a bandwidth that is no number is none."""
    whole = [line(0, 1), "{nonsense", line(0, 2, busbw="nan"), line(5, 3), line(0, 4)]
    (tmp_path / "a.log").write_text("\n".join(whole)[:-30])
    trace = open_trace(tmp_path / "a.log")
    assert trace.collectives["seq"].tolist() == [1, 2]
    assert trace.meta.dropped == {"broken": 2, "truncated": 1}
    assert len(trace.counters) == 1


def test_a_log_without_collectives_is_one_error(tmp_path: Path) -> None:
    """It names the file."""
    (tmp_path / "a.log").write_text(line(0, 1).replace("10", "x"))
    with pytest.raises(TraceError, match=r"a\.log: no collective"):
        open_trace(tmp_path / "a.log")
