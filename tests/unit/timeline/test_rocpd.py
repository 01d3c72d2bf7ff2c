"""Databases of rocprofv3: the sample, who launched what, several processes in one file, and what is not run."""

import sqlite3
from pathlib import Path

import pandas as pd
import pytest

from tlkit.collector.commands.analyze import main
from tlkit.timeline import TraceError, open_trace

REPOSITORY = Path(__file__).resolve().parents[3]
SAMPLE = REPOSITORY / "samples" / "formats" / "rocpd"
GOLDEN = REPOSITORY / "tests" / "golden" / "formats" / "rocpd.txt"


def copied(folder: Path, *statements: str) -> Path:
    """Rank 0's database, changed."""
    path = folder / "changed.db"
    path.write_bytes((SAMPLE / "rank-0_results.db").read_bytes())
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path


def name_of(path: Path, table: str) -> str:
    """A table's name with the process' id behind it."""
    connection = sqlite3.connect(path)
    query = "select name from sqlite_master where type = 'table' and name glob ?"
    ((name,),) = connection.execute(query, (f"rocpd_{table}_0*",)).fetchall()
    connection.close()
    return str(name)


def test_the_sample_reads_as_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    """Two processes, as `tl-analyze` shows them."""
    assert main([str(SAMPLE)]) == 0
    assert capsys.readouterr().out == GOLDEN.read_text(encoding="utf-8")


def test_work_belongs_to_what_its_host_was_about() -> None:
    """By the call that launched it, which has the same number as the dispatch; times in ns from the first event."""
    trace = open_trace(SAMPLE)
    device = trace.spans[(trace.spans["rank"] == 1) & (trace.spans["lane_kind"].isin(["compute", "communication"]))]
    of_name = device.drop_duplicates("name").set_index("name")

    assert of_name["category"].to_dict() == {
        "MEMORY_COPY_HOST_TO_DEVICE": "h2d",
        "Cijk_forward": "forward",
        "Cijk_backward": "backward",
        "ncclDevKernel_Generic_1": "collective",
        "adam": "optimizer",
    }
    assert trace.steps["step"].tolist() == [*range(12)] * 2
    assert of_name.loc["Cijk_forward", "dur_ns"] == 4_500_000
    launch = trace.launches[
        (trace.launches["rank"] == 1) & (trace.launches["start_ns"] == of_name.loc["adam", "start_ns"])
    ]
    assert of_name.loc["adam", "start_ns"] - launch["launched_ns"].item() == 12_300_000
    assert launch["call_ns"].item() == 8_000
    assert len(trace.collectives) == 24


def test_several_processes_in_one_file_are_ranks(tmp_path: Path) -> None:
    """Each has tables of its own, as `rocpd merge` leaves them."""
    path = copied(tmp_path)
    with sqlite3.connect(path) as into:
        into.execute("attach ? as other", (str(SAMPLE / "rank-1_results.db"),))
        tables = into.execute("select name from other.sqlite_master where type = 'table'").fetchall()
        for (name,) in tables:
            into.execute(f'create table "{name}" as select * from other."{name}"')
    into.close()
    trace = open_trace(path)

    assert trace.meta.ranks == (0, 1)
    assert len(trace.steps) == 24
    assert trace.meta.clock.method == "single"


def test_a_span_that_ends_before_it_begins_is_counted(tmp_path: Path) -> None:
    """And left out."""
    table = name_of(SAMPLE / "rank-0_results.db", "kernel_dispatch")
    path = copied(tmp_path, f'update "{table}" set "end" = start - 1 where id = 3')

    assert open_trace(path).meta.dropped == {"impossible_time": 1}


def test_text_where_a_time_has_to_be_is_one_line(tmp_path: Path) -> None:
    """With what to do about it."""
    table = name_of(SAMPLE / "rank-0_results.db", "region")
    path = copied(tmp_path, f"update \"{table}\" set start = 'soon' where id = 2")
    with pytest.raises(TraceError, match="record it again with rocprofv3"):
        open_trace(path)


def test_a_hostile_name_of_a_table_is_none_of_ours(tmp_path: Path) -> None:
    """Nothing that the file says becomes part of a query."""
    path = copied(tmp_path, 'create table "rocpd_kernel_dispatch"";drop" (id, start, end)')

    assert len(open_trace(path).steps) == 12


def test_views_are_not_asked(tmp_path: Path) -> None:
    """What a schema makes up may be without end."""
    table = name_of(SAMPLE / "rank-0_results.db", "kernel_dispatch")
    endless = (
        "with recursive n(i) as (select 1 union all select i + 1 from n) select i as id, i as start, i as end from n"
    )
    path = copied(tmp_path, f'drop table "{table}"', f'create view "{table}" as {endless}')
    with pytest.raises(TraceError, match="none of rocprofv3"):
        open_trace(path)


#: What the later published schema has moved from the activities to their tracks.
_OF_TRACKS = ("nid", "pid", "tid", "agent_id", "queue_id", "stream_id")


def in_later_schema(folder: Path) -> Path:
    """Rank 0's database with times and tracks in tables of their own."""
    path = copied(folder)
    connection = sqlite3.connect(path)
    suffix = name_of(path, "region").removeprefix("rocpd_region")
    times, tracks = f'"rocpd_timestamp{suffix}"', f'"rocpd_track{suffix}"'
    connection.execute(f"create table {times} (id integer primary key, value, phase, track_id)")
    connection.execute(f"create table {tracks} (id integer primary key, {', '.join(_OF_TRACKS)})")
    for name in ("region", "kernel_dispatch", "memory_copy"):
        table = f"rocpd_{name}{suffix}"
        cursor = connection.execute(f'select * from "{table}"')
        columns = [column for column, *_ in cursor.description]
        rows = [dict(zip(columns, row, strict=True)) for row in cursor]
        left = [column for column in columns if column not in {*_OF_TRACKS, "start", "end"}]
        connection.execute(f'drop table "{table}"')
        connection.execute(f'create table "{table}" ({", ".join(left)}, track_id, start_id, end_id)')
        for row in rows:
            track = connection.execute(
                f"insert into {tracks} ({', '.join(_OF_TRACKS)}) values ({', '.join('?' * len(_OF_TRACKS))})",
                [row.get(column) for column in _OF_TRACKS],
            ).lastrowid
            ends = [
                connection.execute(f"insert into {times} (value, track_id) values (?, ?)", (row[at], track)).lastrowid
                for at in ("start", "end")
            ]
            marks = ", ".join("?" * (len(left) + 3))
            connection.execute(f'insert into "{table}" values ({marks})', [*(row[c] for c in left), track, *ends])
    connection.commit()
    connection.close()
    return path


def test_both_schemas_tell_the_same(tmp_path: Path) -> None:
    """Times by their numbers, and processes, threads, agents and streams by tracks."""
    (tmp_path / "first").mkdir()
    first, later = open_trace(copied(tmp_path / "first")), open_trace(in_later_schema(tmp_path))

    for name in ("spans", "collectives", "steps", "launches"):
        pd.testing.assert_frame_equal(getattr(later, name), getattr(first, name))
    assert len(later.spans)
    assert later.meta.dropped == first.meta.dropped == {}


@pytest.mark.parametrize("table", ["timestamp", "track"])
def test_activities_without_times_or_tracks_are_counted(table: str, tmp_path: Path) -> None:
    """A damaged file of the later schema ends in no error."""
    path = in_later_schema(tmp_path)
    connection = sqlite3.connect(path)
    connection.execute(f'delete from "{name_of(path, table)}" where id % 5 = 0')
    connection.commit()
    connection.close()
    trace = open_trace(path)

    assert len(trace.spans)
    assert set(trace.meta.dropped) == {"impossible_time" if table == "timestamp" else "broken"}
