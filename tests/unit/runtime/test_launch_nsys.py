"""How ranks are put under Nsight Systems; the real one is in tests/integration/test_nsys.py."""

import os
from pathlib import Path

import pytest

from tlkit.runtime.instrument.steps import _steps_to_capture
from tlkit.runtime.launch.cli import _with_values_joined
from tlkit.runtime.launch.nsys import finish, nsys_command
from tlkit.runtime.launch.options import make_parser
from tlkit.timeline.errors import TraceError, UsageError
from tlkit.timeline.read.nsys_reports import as_sqlite


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH with an nsys that exports by copying."""
    script = tmp_path / "nsys"
    script.write_text('#!/bin/sh\nfor last; do :; done\nwhile [ "$1" != --output ]; do shift; done\ncp "$last" "$2"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def test_every_rank_gets_a_report_of_its_own(nsys: Path) -> None:
    """The name has nsys's own placeholder for the rank; ours are the defaults, the user's arguments win."""
    line = nsys_command(
        ["python", "t.py"], output=f"{nsys}/new/out/x", rank_variable="HOROVOD_RANK", extra="", steps=None
    )
    assert line[:2] == ["nsys", "profile"]
    assert f"{nsys}/new/out/x.rank%q{{HOROVOD_RANK}}" in line
    assert (nsys / "new" / "out").is_dir()
    assert "--trace-fork-before-exec=true" in line
    assert "--sample=none" in line
    assert line[-2:] == ["python", "t.py"]
    line = nsys_command(["x"], output="x", rank_variable="R", extra="-t nvtx,osrt --sample=cpu", steps="3:5")
    assert [word for word in line if word.startswith("--trace=")] == []
    assert [word for word in line if word.startswith("--sample")] == ["--sample=cpu"]
    assert "--nvtx-capture=capture@tlkit" in line


def test_a_folder_that_cannot_be_made_is_said_before_the_run(nsys: Path) -> None:
    """Not after it, when the profile is lost."""
    with pytest.raises(UsageError, match="the folder cannot be created"):
        nsys_command(["x"], output=f"{nsys}/nsys/x", rank_variable="R", extra="", steps=None)


def test_arguments_of_others_may_begin_with_a_dash() -> None:
    """As one word and as two; those of the command stay as they are."""
    joined = _with_values_joined(
        ["-np", "2", "--nsys-args", "--stats=true", "--mpi-args", "-x A", "--", "python", "--nsys-args", "--x"]
    )
    assert joined == [
        "-np", "2", "--nsys-args=--stats=true", "--mpi-args=-x A", "--", "python", "--nsys-args", "--x",
    ]  # fmt: skip
    assert make_parser().parse_args(joined).nsys_args == "--stats=true"


@pytest.mark.parametrize(("extra", "steps"), [('"', None), ("", "5:3"), ("", "x")])
def test_arguments_that_make_no_sense_are_one_line(nsys: Path, extra: str, steps: str | None) -> None:
    """Before anything is started."""
    with pytest.raises(UsageError):
        nsys_command(["x"], output="x", rank_variable="R", extra=extra, steps=steps)


def test_without_nsys_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For a launch, and for a report that only nsys can read."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="nsys is not on PATH"):
        nsys_command(["x"], output="x", rank_variable="R", extra="", steps=None)
    report = tmp_path / "r.nsys-rep"
    report.write_bytes(b"x")
    with pytest.raises(TraceError, match="not on PATH"):
        as_sqlite([report])
    assert "no report" in finish(str(tmp_path / "none"), 2)


def test_a_report_is_exported_once(nsys: Path, tmp_path: Path) -> None:
    """And again when it is newer than its export."""
    report = tmp_path / "r.nsys-rep"
    report.write_bytes(b"first")
    assert as_sqlite([report]) == [tmp_path / "r.sqlite"]
    made = (tmp_path / "r.sqlite").stat().st_mtime_ns
    as_sqlite([report])
    assert (tmp_path / "r.sqlite").stat().st_mtime_ns == made
    report.write_bytes(b"second")
    os.utime(report, (2e9, 2e9))
    as_sqlite([report])
    assert (tmp_path / "r.sqlite").read_bytes() == b"second"


@pytest.mark.parametrize(("text", "steps"), [("3:7", (3, 7)), ("", None), ("7:3", None), ("a:b", None)])
def test_steps_to_capture(text: str, steps: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not understood is no wish."""
    monkeypatch.setenv("TLKIT_NSYS_STEPS", text)
    assert _steps_to_capture() == steps
