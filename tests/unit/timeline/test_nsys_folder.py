"""Exports of Nsight Systems as folders: the same tables as in a database, and files that are none."""

import sqlite3
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tlkit.collector.commands.analyze import main
from tlkit.timeline import TraceError, open_trace
from tlkit.timeline.model.trace import TABLES

from .test_nsys import write_old_export

REPOSITORY = Path(__file__).resolve().parents[3]
SAMPLE = REPOSITORY / "samples" / "formats" / "nsys-folder"
GOLDEN = REPOSITORY / "tests" / "golden" / "formats" / "nsys-folder.txt"


def test_the_sample_reads_as_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    """Two processes, as `tl-analyze` shows them."""
    assert main([str(SAMPLE)]) == 0
    assert capsys.readouterr().out == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_folder_holds_what_a_database_holds(tmp_path: Path, kind: str) -> None:
    """Every table of the trace is the same."""
    database = tmp_path / "export.sqlite"
    write_old_export(database, rank_pids=(100, 200))
    folder = tmp_path / "report_dir"
    folder.mkdir()
    connection = sqlite3.connect(database)
    for (name,) in connection.execute("select name from sqlite_master where type = 'table'").fetchall():
        table = pa.Table.from_pandas(pd.read_sql_query(f'select * from "{name}"', connection), preserve_index=False)
        if kind == "parquet":
            pq.write_table(table, folder / f"{name}.parquet")
        else:
            with pa.ipc.new_file(folder / f"{name}.arrow", table.schema) as file:
                file.write_table(table)
    connection.close()
    expected, found = open_trace(database), open_trace(folder)

    assert found.meta.format == "nsys-folder"
    assert found.meta.ranks == expected.meta.ranks == (0, 1)
    assert found.meta.dropped == expected.meta.dropped
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(found, name), getattr(expected, name))


def test_other_tables_are_refused(tmp_path: Path) -> None:
    """With what to open instead."""
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(TraceError, match="open the whole folder"):
        open_trace(tmp_path)


def test_a_table_cannot_claim_more_than_it_holds(tmp_path: Path) -> None:
    """Ten million times the same is a few kilobytes."""
    (tmp_path / "StringIds.parquet").write_bytes((SAMPLE / "StringIds.parquet").read_bytes())
    same = pa.array([1000], pa.int64()).take(pa.array([0] * 1_000_000))
    pq.write_table(pa.table({"start": same, "end": same}), tmp_path / "NVTX_EVENTS.parquet")
    with pytest.raises(TraceError, match="claims 1000000 rows"):
        open_trace(tmp_path)


@pytest.mark.parametrize(
    "content", [b"PAR1", b"PAR1" + b"\0" * 100 + b"PAR1", b"ARROW1", b"ARROW1\0\0" + b"\xff" * 200]
)
def test_a_damaged_table_is_one_line(tmp_path: Path, content: bytes) -> None:
    """With what to do about it."""
    (tmp_path / "StringIds.parquet").write_bytes(content)
    with pytest.raises(TraceError, match="export it again"):
        open_trace(tmp_path)


def test_text_where_a_time_has_to_be_is_one_line(tmp_path: Path) -> None:
    """Whatever the column's type says."""
    for path in SAMPLE.glob("*.parquet"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    table = pq.read_table(tmp_path / "NVTX_EVENTS.parquet")
    soon = pa.array(["soon"] * len(table))
    pq.write_table(
        table.set_column(table.schema.get_field_index("start"), "start", soon), tmp_path / "NVTX_EVENTS.parquet"
    )
    with pytest.raises(TraceError, match="in its table NVTX_EVENTS, row 1, start is 'soon'"):
        open_trace(tmp_path)


def test_ranges_without_a_wait_or_a_device_are_a_trace(tmp_path: Path) -> None:
    """Nothing but ranges of a program that communicates in no way that is known."""
    ranges = {
        "start": [10, 40],
        "end": [30, 60],
        "eventType": [59, 59],
        "text": ["load", "compute"],
        "globalTid": [1 << 24, 1 << 24],
    }
    pq.write_table(pa.table(ranges), tmp_path / "NVTX_EVENTS.parquet")
    spans = open_trace(tmp_path, use_cache=False).spans

    assert list(zip(spans["name"], spans["start_ns"], spans["dur_ns"], strict=True)) == [
        ("load", 0, 20),
        ("compute", 30, 20),
    ]
