"""sqlite exports of Nsight Systems: the newest that there is, and one as 2022 wrote it."""

import gzip
import sqlite3
from pathlib import Path

import pytest

from tlkit.timeline import open_trace
from tlkit.timeline.errors import TraceError


def thread_of(pid: int, thread: int) -> int:
    """A globalTid."""
    return (1 << 48) | (pid << 24) | thread


def write_old_export(path: Path, *, rank_pids: tuple[int, ...] = (100,)) -> None:
    """An export of 2022: NVTX text in its own column, few columns, no newer tables."""
    database = sqlite3.connect(path)
    database.executescript(
        """
        create table EXPORT_META_DATA (name text, value text);
        insert into EXPORT_META_DATA values ('EXPORT_SCHEMA_VERSION', '3.0.0');
        create table StringIds (id integer, value text);
        insert into StringIds values (1, 'sgemm'), (2, 'cudaLaunchKernel'), (3, 'ncclKernel_AllReduce_RING_LL'), (4, 'python');
        create table ThreadNames (nameId integer, priority integer, globalTid integer);
        create table NVTX_EVENTS (start integer, end integer, eventType integer, text text, globalTid integer,
            textId integer, int64Value integer);
        create table CUPTI_ACTIVITY_KIND_RUNTIME (start integer, end integer, globalTid integer, correlationId integer,
            nameId integer);
        create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, end integer, deviceId integer, streamId integer,
            correlationId integer, globalPid integer, demangledName integer, shortName integer);
        create table CUPTI_ACTIVITY_KIND_MEMCPY (start integer, end integer, deviceId integer, streamId integer,
            correlationId integer, globalPid integer, bytes integer, copyKind integer);
        create table TARGET_INFO_GPU_METRICS (typeId integer, metricId integer, metricName text);
        insert into TARGET_INFO_GPU_METRICS values (0, 7, 'SM Active');
        create table GPU_METRICS (timestamp integer, typeId integer, metricId integer, value integer);
        insert into GPU_METRICS values (1500, 0, 7, 93);
        """
    )
    for number, pid in enumerate(rank_pids):
        thread, process = thread_of(pid, 7), thread_of(pid, 0)
        database.execute("insert into ThreadNames values (4, 1, ?)", (thread,))
        database.executemany(
            "insert into NVTX_EVENTS values (?, ?, ?, ?, ?, null, ?)",
            [
                (1000, 9000, 59, "STEP", thread, 5),
                (1100, 2000, 59, "FORWARD", thread, None),
                (2000, 4000, 59, "BACKWARD", thread, None),
                (2500, None, 59, "never ended", thread, None),
                (3000, None, 34, "a mark", thread, None),
            ],
        )
        database.executemany(
            "insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, ?, ?, 2)",
            [(1200, 1250, thread, 11), (2100, 2150, thread, 12), (2200, 2250, thread, 13)],
        )
        database.executemany(
            "insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, ?, ?, ?, ?, ?, null)",
            [
                (1300, 1800, number, 7, 11, process, 1),
                (2300, 2900, number, 7, 12, process, 1),
                (2400, 3400, number, 20, 13, process, 3),
            ],
        )
        database.execute(
            "insert into CUPTI_ACTIVITY_KIND_MEMCPY values (1010, 1090, ?, 7, 99, ?, 4096, 1)", (number, process)
        )
    database.commit()
    database.close()


def test_an_old_export_becomes_tables(tmp_path: Path) -> None:
    """Kernels belong to what the host was about when it launched them."""
    write_old_export(tmp_path / "rank3.sqlite")
    trace = open_trace(tmp_path / "rank3.sqlite")
    trace.check()
    device = trace.spans[trace.spans["lane"].str.startswith("stream")].sort_values("start_ns")
    assert trace.meta.format == "nsys"
    assert trace.meta.ranks == (3,)
    assert device[["name", "category", "lane_kind", "dur_ns"]].to_numpy().tolist() == [
        ["Memcpy HtoD", "h2d", "compute", 80],
        ["sgemm", "forward", "compute", 500],
        ["sgemm", "backward", "compute", 600],
        ["ncclKernel_AllReduce_RING_LL", "collective", "communication", 1000],
    ]
    assert trace.steps.to_dict("records") == [{"rank": 3, "step": 5, "start_ns": 0, "end_ns": 8000}]
    assert trace.collectives[["kind", "submitted_ns", "start_ns"]].to_numpy().tolist() == [["allreduce", 1200, 1400]]
    assert trace.counters.to_dict("records") == [{"rank": 3, "name": "GPU 0 SM Active", "ts_ns": 500, "value": 93.0}]
    assert trace.meta.dropped == {"unclosed_begin": 1}
    assert "NVTX python 7" in set(trace.spans["lane"])


def test_processes_are_ranks_in_the_order_of_their_devices(tmp_path: Path) -> None:
    """One report of two processes."""
    write_old_export(tmp_path / "both.sqlite", rank_pids=(900, 200))
    trace = open_trace(tmp_path / "both.sqlite")
    assert trace.meta.ranks == (0, 1)
    assert trace.spans.groupby("rank").size().tolist() == [10, 10]


def test_ranks_arrive_when_they_begin_to_wait(tmp_path: Path) -> None:
    """A collective begins on all ranks when they have agreed; rank 1 is late, as its wait shows."""
    paths = []
    for rank, waits_at in enumerate((2_000, 7_000)):
        path = tmp_path / f"r{rank}.sqlite"
        database = sqlite3.connect(path)
        database.executescript(
            """
            create table EXPORT_META_DATA (name text, value text);
            create table StringIds (id integer, value text);
            create table NVTX_EVENTS (start integer, end integer, eventType integer, text text, globalTid integer,
                textId integer, int64Value integer);
            """
        )
        thread, other = thread_of(100 + rank, 1), thread_of(100 + rank, 2)
        database.executemany(
            "insert into NVTX_EVENTS values (?, ?, 59, ?, ?, null, ?)",
            [
                (row[0] + 10_000 * step, row[1] + 10_000 * step, *row[2:])
                for step in range(3)
                for row in (
                    (500, 9_500, "STEP", thread, step),
                    (600, 1_000, "FORWARD", thread, None),
                    (waits_at, 9_000, "SYNCHRONIZE", thread, None),
                    (8_000, 9_000, "ALLREDUCE", other, 4096),
                    (9_200, 9_300, "OPTIMIZER_STEP", thread, None),
                )
            ],
        )
        database.commit()
        database.close()
        paths.append(path)
    trace = open_trace(paths)
    arrivals = trace.arrivals.sort_values(["seq", "rank"])["arrival_ns"].to_numpy().reshape(-1, 2)

    assert arrivals.tolist() == [[1_500 + 10_000 * step, 6_500 + 10_000 * step] for step in range(3)]
    assert set(trace.collectives["nbytes"]) == {4096}


def test_sums_of_a_real_export_equal_sql(shared_traces: Path, tmp_path: Path) -> None:
    """Two H100, one second."""
    (packed,) = (shared_traces / "nsight").glob("*.sqlite.gz")
    plain = tmp_path / "export.sqlite"
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    trace = open_trace(packed)
    trace.check()
    database = sqlite3.connect(plain)
    total, count = 0, 0
    for table in ("KERNEL", "MEMCPY", "MEMSET"):
        of_table = database.execute(f"select sum(end - start), count(*) from CUPTI_ACTIVITY_KIND_{table}").fetchone()
        total, count = total + of_table[0], count + of_table[1]
    (ranges,) = database.execute("select count(*) from NVTX_EVENTS where eventType = 59").fetchone()
    database.close()
    device = trace.spans[trace.spans["lane_kind"].isin(["compute", "communication"])]
    assert (int(device["dur_ns"].sum()), len(device)) == (total, count)
    assert trace.spans["lane"].str.startswith("NVTX").sum() == ranges
    assert trace.meta.ranks == (0, 1)


def test_whatever_is_cut_off_it_is_one_clear_error_or_reads(tmp_path: Path) -> None:
    """An export that was not copied to its end."""
    write_old_export(tmp_path / "whole.sqlite")
    content = (tmp_path / "whole.sqlite").read_bytes()
    path = tmp_path / "cut.sqlite"
    outcomes = set()
    for length in range(16, len(content), 997):
        path.write_bytes(content[:length])
        try:
            open_trace(path)
            outcomes.add("read")
        except TraceError as error:
            outcomes.add("refused")
            assert "cut.sqlite" in str(error)
    assert "refused" in outcomes


def test_another_database_is_refused(tmp_path: Path) -> None:
    """sqlite, but not of Nsight."""
    database = sqlite3.connect(tmp_path / "other.sqlite")
    database.execute("create table a (b)")
    database.commit()
    database.close()
    with pytest.raises(TraceError, match="no export of Nsight Systems"):
        open_trace(tmp_path / "other.sqlite")
