"""What `make gpu` works out apart from the device: comparisons on made-up profiles, tables, and that its pieces fit together."""

import ast
import doctest
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import gpu
from gpu_checks import comparing, document

REPOSITORY = Path(__file__).resolve().parents[3]

MS = 1_000_000
TESTS = sorted((REPOSITORY / "tests" / "gpu").glob("test_*.py"))


@pytest.mark.parametrize("module", [comparing, document], ids=["comparing", "document"])
def test_examples_hold(module: object) -> None:
    """Those of the docstrings."""
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def sleeps(count: int, *, off_ns: int = 0, factor: float = 1.0) -> np.ndarray:
    """Kernels of 20 ms, every 25, as one witness sees them."""
    start = np.arange(count, dtype=np.int64) * 25 * MS + off_ns
    return np.stack([start, start + int(20 * MS * factor)], axis=1)


def test_the_same_work_is_found_whatever_the_clocks_are_off() -> None:
    """As long as it is less than the work itself; lengths and starts are told apart."""
    found = comparing.compare(sleeps(50, off_ns=-3 * MS, factor=1.02), sleeps(50))

    assert (found.pairs, found.unmatched) == (50, 0)
    assert found.largest_duration_error == pytest.approx(0.02)
    assert found.largest_start_off_ns == 3 * MS


def test_one_bad_span_is_not_lost_in_the_mean() -> None:
    """Of fifty."""
    ours = sleeps(50)
    ours[30, 1] += 2 * MS
    found = comparing.compare(ours[::-1], sleeps(50))

    assert found.largest_duration_error == pytest.approx(0.1)
    assert np.median(np.abs(found.duration_errors)) == 0


def test_spans_without_a_kernel_are_counted_and_kernels_are_used_once() -> None:
    """A recording that doubles spans, or one of which the profile holds a part."""
    doubled = comparing.compare(np.concatenate([sleeps(10), sleeps(10)]), sleeps(10))
    partly = comparing.compare(sleeps(10), sleeps(4))
    nothing = comparing.compare(sleeps(3), sleeps(0))

    assert (doubled.pairs, doubled.unmatched) == (10, 10)
    assert (partly.pairs, partly.unmatched) == (4, 6)
    assert (nothing.pairs, nothing.unmatched, nothing.largest_duration_error, nothing.largest_start_off_ns) == (
        0,
        3,
        0.0,
        0,
    )


def test_a_table_shows_what_was_noted() -> None:
    """Rows may lack something; a cell is one cell, whatever is in it."""
    rows = [{"kind": "a|b", "ms": 1.23456}, {"kind": "two\nlines", "off": 3}]

    assert document.table(rows).splitlines() == [
        "| kind | ms | off |", "| --- | --- | --- |", "| a\\|b | 1.235 |  |", "| two lines |  | 3 |",
    ]  # fmt: skip
    assert document.table([]) == document.NEVER


def test_a_run_writes_its_tables_and_leaves_the_others(tmp_path: Path) -> None:
    """Into the document as it is now; a piece that failed is named."""
    text = gpu.DOCUMENT.read_text(encoding="utf-8")
    notes = tmp_path / "clocks.jsonl"
    notes.write_text(json.dumps({"table": "clocks", "row": {"spans": 50}}) + "\n" + '{"table": "clo', encoding="utf-8")
    outcomes = {"clocks": "passed", "graphs": "not done after 240 s"}
    written = gpu.written(text, "a GPU, torch 2", outcomes, gpu.read_notes(notes))

    assert "Run on a GPU, torch 2. Passed: clocks. Not passed: graphs: not done after 240 s." in written
    assert "| spans |\n| --- |\n| 50 |" in written
    assert written.count(document.NEVER) == text.count(document.NEVER) - 2
    assert gpu.read_notes(tmp_path / "none") == {}
    with pytest.raises(ValueError, match="no part unheard-of"):
        document.replaced(text, "unheard-of", "")


def test_every_table_has_a_place_in_the_document() -> None:
    """And every place a test that fills it."""
    noted = {name for path in TESTS for name in re.findall(r'note\(\s*"(\w+)"', path.read_text(encoding="utf-8"))}
    places = set(re.findall(r"<!-- (\w+) -->", gpu.DOCUMENT.read_text(encoding="utf-8")))

    assert noted == places - {"state"}


def test_pieces_are_the_tests_and_take_half_an_hour_at_most() -> None:
    """Each less than ten minutes."""
    assert {f"test_{piece}.py" for piece in gpu.PIECES} == {path.name for path in TESTS}
    assert max(gpu.PIECES.values()) < 600
    assert sum(gpu.PIECES.values()) <= 1800


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_scripts_for_the_device_are_python(path: Path) -> None:
    """They are run in processes of their own, on machines that are not here."""
    scripts = [
        str(node.value.value)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and "\n" in str(node.value.value)
    ]
    for script in scripts:
        ast.parse(textwrap.dedent(re.sub(r"\{\w+(!r)?\}", "0", script)))

    assert scripts


def test_without_a_device_one_line_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing is written."""
    monkeypatch.setattr(gpu, "device", lambda: "")
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    before = gpu.DOCUMENT.read_bytes()

    assert gpu.main() == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert gpu.DOCUMENT.read_bytes() == before


def test_a_piece_that_hangs_is_over_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What it has noted until then counts."""

    def hang(*_: object, env: dict[str, str], timeout: float, **__: object) -> None:
        Path(env["TLKIT_GPU_NOTES"]).write_text(json.dumps({"table": "graphs", "row": {"count": 1}}), encoding="utf-8")
        raise subprocess.TimeoutExpired("pytest", timeout)

    monkeypatch.setattr(subprocess, "run", hang)

    assert gpu.run("graphs", 5, tmp_path) == ("not done after 5 s", {"graphs": [{"count": 1}]})
