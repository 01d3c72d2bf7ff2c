"""sqlite exports of Nsight Systems: the newest that there is, and one as 2022 wrote it."""

import gzip
import json
import sqlite3
import struct
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


def test_a_damaged_name_of_a_table_is_one_clear_error(tmp_path: Path) -> None:
    """What sqlite says of it has bytes of the file in it that are no text."""
    write_old_export(tmp_path / "whole.sqlite")
    content = (tmp_path / "whole.sqlite").read_bytes()
    damaged = content.replace(b"ThreadNamesThreadNames", b"Thread\xb2amesThreadNames").replace(
        b"CREATE TABLE ThreadNames (nameId", b"CREATE TABLE ThreadNames )nameId"
    )
    assert b"Thread\xb2ames" in damaged
    assert b"ThreadNames )" in damaged
    (tmp_path / "damaged.sqlite").write_bytes(damaged)
    with pytest.raises(TraceError, match=r"is damaged or no .*the name of a table is no text"):
        open_trace(tmp_path / "damaged.sqlite", use_cache=False)


def test_another_database_is_refused(tmp_path: Path) -> None:
    """sqlite, but not of Nsight."""
    database = sqlite3.connect(tmp_path / "other.sqlite")
    database.execute("create table a (b)")
    database.commit()
    database.close()
    with pytest.raises(TraceError, match="no export of Nsight Systems"):
        open_trace(tmp_path / "other.sqlite")


MAIN, AUTOGRAD = thread_of(100, 7), thread_of(100, 8)
SCHEMA, INIT = 16777220, 16777218


def payload(schema: int, content: bytes) -> bytes:
    """A payload behind its head."""
    return struct.pack("<IIIIQQ", 1, 0, schema, 0, len(content), 32 + len(content)) + content


def write_nccl_export(
    path: Path, asked: list[tuple[int, int, str, object]], kernels: list[tuple[int, int, int, str]]
) -> None:
    """An export of 2026 with NCCL's payloads.

    Args:
        asked: start, thread, name and payload (bytes, or text as JSON) of ranges of NCCL, each 10 ns long.
        kernels: launch, start, thread and name of kernels, each 1000 ns long.
    """
    write_old_export(path, rank_pids=())
    database = sqlite3.connect(path)
    database.executescript(
        """
        alter table NVTX_EVENTS add column jsonText text;
        alter table NVTX_EVENTS add column binaryData text;
        create table NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId integer not null, schemaId integer not null, idx integer not null,
            flags integer, type integer, name text, description text, arrayOrUnionDetail integer, offset integer);
        """
    )
    entries = [
        (SCHEMA, 0, 18, "NCCL communicator ID", None), (SCHEMA, 1, 22, "Message size [bytes]", 8),
        (INIT, 0, 18, "NCCL communicator ID", None), (INIT, 1, 5, "No. of ranks", 8), (INIT, 2, 5, "Rank", 12),
    ]  # fmt: skip
    database.executemany("insert into NVTX_PAYLOAD_SCHEMA_ENTRIES values (1, ?, ?, null, ?, ?, null, null, ?)", entries)
    database.execute("insert into NVTX_EVENTS values (1000, 90000, 59, 'STEP', ?, null, 0, null, null)", (MAIN,))
    database.execute("insert into NVTX_EVENTS values (1000, 50000, 59, 'BACKWARD', ?, null, null, null, null)", (MAIN,))
    for start, thread, name, content in asked:
        is_text = isinstance(content, str) and content.startswith("{")
        database.execute(
            "insert into NVTX_EVENTS values (?, ?, 59, ?, ?, null, null, ?, ?)",
            (start, start + 10, name, thread, content if is_text else None, None if is_text else content),
        )
    for number, (launch, start, thread, name) in enumerate(kernels, start=100):
        database.execute("insert into StringIds values (?, ?)", (number, name))
        database.execute(
            "insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, ?, ?, 2)", (launch, launch + 20, thread, number)
        )
        database.execute(
            "insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, 0, 7, ?, ?, ?, null)",
            (start, start + 1000, number, thread_of(100, 0), number),
        )
    database.commit()
    database.close()


def size_of(communicator: int, nbytes: int) -> bytes:
    return payload(SCHEMA, struct.pack("<QQ", communicator, nbytes))


def test_nccl_says_how_many_bytes_it_moves(tmp_path: Path) -> None:
    """In its payloads, as the exporter left them; a group's kernel is launched by its end and moves what was asked for in it."""
    asked: list[tuple[int, int, str, object]] = [
        (1_000, MAIN, "ncclCommInitRankConfig", payload(INIT, struct.pack("<Qiii4x", 7, 8, 0, 0))),
        (2_000, MAIN, "ncclAllReduce", size_of(7, 4096)),
        (3_000, AUTOGRAD, "ncclAllReduce", size_of(7, 1 << 20)),
        (4_000, MAIN, "ncclAllGather", size_of(7, 100).hex()),
        (5_000, MAIN, "ncclReduceScatter", json.dumps({"Message size [bytes]": 32, "NCCL communicator ID": 7})),
        (6_000, MAIN, "ncclSend", size_of(7, 10)),
        (6_020, MAIN, "ncclRecv", size_of(7, 30)),
        (6_040, MAIN, "ncclSend", size_of(7, 10)),
        (7_000, MAIN, "ncclAllReduce", size_of(7, 1)),
        (7_020, MAIN, "ncclAllReduce", size_of(7, 2)),
    ]
    kernels = [
        (2_005, 10_000, MAIN, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        (3_005, 12_000, AUTOGRAD, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        (4_050, 14_000, MAIN, "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        (5_005, 16_000, MAIN, "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        (6_100, 18_000, MAIN, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"),
        (7_100, 20_000, MAIN, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        (8_000, 22_000, MAIN, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    ]
    write_nccl_export(tmp_path / "rank0.sqlite", asked, kernels)
    collectives = open_trace(tmp_path / "rank0.sqlite").collectives

    assert list(zip(collectives["kind"], collectives["nbytes"], strict=True)) == [
        ("allreduce", 4096),
        ("allreduce", 1 << 20),
        ("allgather", 100),
        ("reducescatter", 32 * 8),
        ("sendrecv", 30),
        ("allreduce", 3),
        ("allreduce", -1),
    ]


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"short",
        payload(99, b"12345678"),
        payload(SCHEMA, b"1"),
        "zz",
        '{"Message size [bytes]": "many"}',
        "{",
        "{" * 5000,
    ],
    ids=["empty", "short", "schema", "cut", "text", "word", "brace", "deep"],
)
def test_a_payload_that_says_nothing_is_no_size(tmp_path: Path, broken: object) -> None:
    """And no error: the trace is worth reading without it."""
    kernels = [(2_005, 10_000, MAIN, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")]
    write_nccl_export(tmp_path / "rank0.sqlite", [(2_000, MAIN, "ncclAllReduce", broken)], kernels)

    assert open_trace(tmp_path / "rank0.sqlite").collectives["nbytes"].tolist() == [-1]


def test_what_autograds_thread_launches_in_backward_is_backward(tmp_path: Path) -> None:
    """The range is on the training thread, which waits meanwhile."""
    write_nccl_export(
        tmp_path / "rank0.sqlite", [], [(2_000, 3_000, AUTOGRAD, "sgemm"), (60_000, 61_000, AUTOGRAD, "later")]
    )
    spans = open_trace(tmp_path / "rank0.sqlite").spans
    categories = dict(zip(spans["name"], spans["category"], strict=True))

    assert (categories["sgemm"], categories["later"]) == ("backward", "other")


def test_replays_of_graphs_are_work_of_the_device(tmp_path: Path) -> None:
    """As a whole, unless their kernels are shown; one whose time could not be taken is counted."""
    path = tmp_path / "rank0.sqlite"
    write_nccl_export(path, [], [(2_000, 3_000, MAIN, "sgemm")])
    database = sqlite3.connect(path)
    database.execute(
        "create table CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start integer, end integer, deviceId integer, contextId integer, "
        "greenContextId integer, streamId integer, correlationId integer, globalPid integer, graphId integer, graphExecId integer)"
    )
    process = thread_of(100, 0)
    database.executemany(
        "insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, ?, ?, 2)",
        [(5_000, 5_010, MAIN, 500), (6_000, 6_010, MAIN, 501)],
    )
    database.executemany(
        "insert into CUPTI_ACTIVITY_KIND_GRAPH_TRACE values (?, ?, ?, 1, 0, 7, ?, ?, 9, 1)",
        [
            (10_000, 14_000, 0, 500, process),
            (20_000, 21_000, 2**31 - 1, 501, process),
            (3_000, 4_000, 0, 100, process),
            (0, 0, 0, 502, process),
        ],
    )
    database.commit()
    database.close()
    trace = open_trace(path)
    trace.check()
    graphs = trace.spans[trace.spans["name"] == "CUDA graph 9"]

    assert graphs["dur_ns"].tolist() == [4_000, 1_000]
    assert set(graphs["category"]) == {"backward"}
    assert set(graphs["lane_kind"]) == {"compute"}
    assert trace.meta.dropped == {"no_time": 1}
    assert trace.launches["correlation"].tolist() == [100, 500, 501]
