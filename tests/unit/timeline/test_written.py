"""What tl-trace writes is a trace again: sliced, merged, packed or cut."""

from pathlib import Path

import pandas as pd
import pytest

from tests.traces import make_trace, uniform
from tlkit.collector.commands.diff import main as diff
from tlkit.timeline import open_trace
from tlkit.timeline.commands.trace import main
from tlkit.timeline.export import files as export
from tlkit.timeline.model.selection import select
from tlkit.timeline.model.trace import TABLES, Trace

STEP = {"data": 1, "forward": 30, "backward": 50, "wait:negotiate": 4, "wait:collective": 10, "optimizer": 4, "host": 5}


def trace() -> Trace:
    """Two ranks, forty steps."""
    return make_trace(uniform(2, 40, STEP))


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_tables_come_back(tmp_path: Path, ending: str) -> None:
    """All of them, whatever the order of spans in the file."""
    path, before = tmp_path / f"t{ending}", trace()
    export.write(before, path, "chrome")
    after = open_trace(path)
    after.check()
    assert after.meta.format == before.meta.format
    assert after.meta.known_categories == before.meta.known_categories
    assert after.meta.files == (str(path),)
    for name in TABLES:
        one, two = getattr(before, name), getattr(after, name)
        if name == "spans":
            keys = ["rank", "lane_kind", "lane", "start_ns", "dur_ns", "name"]
            one, two = (
                table.drop(columns="args_row")
                .astype(dict.fromkeys(("lane_kind", "lane", "name", "category"), "str"))
                .sort_values(keys, ignore_index=True)
                for table in (one, two)
            )
        pd.testing.assert_frame_equal(one, two, check_categorical=False, check_dtype=False)


def test_two_slices_can_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first and the second half of a run, by tl-diff."""
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, steps in zip(paths, ((0, 20), (20, 40)), strict=True):
        export.write(select(trace(), steps=steps), path, "chrome")
    assert diff([str(path) for path in paths]) == 0
    assert "as long as before: 104 ms" in capsys.readouterr().out


def test_args_come_back(own_traces: Path, tmp_path: Path) -> None:
    """Of a real trace, span by span, from a slice of a slice."""
    source = own_traces / "kineto" / "rank0.json.gz"
    first, second = tmp_path / "1.json", tmp_path / "2.json.gz"
    assert main(["slice", str(source), "-o", str(first), "--time", "0:1000"]) == 0
    assert main(["slice", str(first), "-o", str(second), "--time", "0:1000"]) == 0
    one, two = open_trace(first), open_trace(second)
    assert len(one.spans) == len(two.spans) > 0
    for name in ("name", "start_ns", "dur_ns", "lane"):
        assert one.spans[name].astype("str").tolist() == two.spans[name].astype("str").tolist()
    args = [[run.raw_args[row] if row >= 0 else b"" for row in run.spans["args_row"]] for run in (one, two)]
    assert args[0] == args[1]
    assert any(args[0])
    spans = open_trace(source).spans
    assert sorted(spans["start_ns"]) == sorted(one.spans["start_ns"])


def test_a_file_that_lost_its_end_is_read_as_events(tmp_path: Path) -> None:
    """Which its notes say."""
    path = tmp_path / "t.json"
    export.write(trace(), path, "chrome")
    text = path.read_bytes()
    path.write_bytes(text[: text.index(b'"tlkit_tables","pid"')])
    cut = open_trace(path)
    assert len(cut.spans) == len(trace().spans)
    assert cut.meta.notes[0].startswith("the end of this file is missing")
